#include "runtime/session.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace senko::runtime {

Session::Session(Executor& executor, cache::SlotPool& slots, int64_t prompt_tokens, DecoderReplay replay)
    : executor_(executor) {
  auto slot = slots.Allocate();
  if (!slot) throw Error(ErrorCode::kResourceExhausted, "no free sequence slot");
  slot_ = std::move(*slot);
  keep_begin_ = FirstKeptRow(executor.model().config(), prompt_tokens, replay);
  tail_start_ = keep_begin_;
}

void Session::AdoptPrefix(std::span<const int32_t> tokens, std::span<const cache::PageRef> pages) {
  const config::ModelConfig& config = executor_.model().config();
  const int64_t hit = static_cast<int64_t>(tokens.size());
  const int64_t block = executor_.model().page_layout().block_size;
  SENKO_CHECK(tokens_.empty());
  SENKO_CHECK(hit > config.window && hit % block == 0 && static_cast<int64_t>(pages.size()) * block >= hit);
  tokens_.assign(tokens.begin(), tokens.end());
  for (int64_t p = 0; p < hit / block; ++p) {
    pages_.push_back(pages[static_cast<size_t>(p)].Share());
    page_table_.push_back(pages_.back().index());
  }
  write_floor_ = hit;
  replay_start_ = hit - config.window;
  replay_from_ = replay_start_;
  tail_start_ = std::max(tail_start_, replay_start_);
}

void Session::GrowPages() {
  const int64_t block = executor_.model().page_layout().block_size;
  while (static_cast<int64_t>(pages_.size()) * block < size()) {
    auto page = executor_.pages().Allocate();
    if (!page) {
      throw Error(ErrorCode::kResourceExhausted,
                  "out of KV pages at " + std::to_string(size()) + " tokens; raise --kv-cache-memory-bytes");
    }
    page_table_.push_back(page->index());
    pages_.push_back(std::move(*page));
  }
}

int64_t Session::Step(int64_t begin, int64_t end) {
  model::SequenceInput s;
  s.tokens = tokens_.data();
  s.begin = begin;
  s.end = end;
  s.pages = page_table_.data();
  s.slot = slot_.data();
  s.replay_start = replay_start_;
  s.write_floor = write_floor_;
  s.keep_begin = keep_begin_;
  s.tail_start = tail_start_;
  return executor_.Run({&s, 1});
}

int64_t Session::Feed(std::span<const int32_t> tokens) {
  const int64_t vocab = executor_.model().config().vocab_size;
  for (int32_t t : tokens) {
    if (t < 0 || t >= vocab) {
      throw Error(ErrorCode::kInvalidArgument,
                  "token id " + std::to_string(t) + " is outside the vocabulary of " + std::to_string(vocab));
    }
  }
  if (replay_from_ >= 0) {
    for (const int64_t hit = size(); replay_from_ < hit;) {
      const int64_t end = std::min(replay_from_ + executor_.max_rows(), hit);
      Step(replay_from_, end);
      replay_from_ = end;
    }
    replay_from_ = -1;
  }
  SENKO_CHECK(static_cast<int64_t>(tokens.size()) <= executor_.max_rows());
  const int64_t begin = size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  try {
    GrowPages();
  } catch (...) {
    tokens_.resize(static_cast<size_t>(begin));
    throw;
  }
  return Step(begin, size());
}

}  // namespace senko::runtime
