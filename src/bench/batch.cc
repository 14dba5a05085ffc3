#include "bench/batch.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace senko::bench {
namespace {

// The look-back of Engram's n-grams.
constexpr int64_t kLookBack = 8;

cache::PageRef TakePage(cache::PagePool& pages) {
  auto page = pages.Allocate();
  if (!page) throw Error(ErrorCode::kResourceExhausted, "out of KV pages; raise --kv-cache-memory-bytes");
  return std::move(*page);
}

cache::SlotRef TakeSlot(cache::SlotPool& slots) {
  auto slot = slots.Allocate();
  if (!slot) throw Error(ErrorCode::kResourceExhausted, "no free sequence slot");
  return std::move(*slot);
}

}  // namespace

int64_t Batch::Pages(const config::PageLayout& layout, int64_t batch, int64_t context, int64_t tokens) {
  return context / layout.block_size + batch * ((tokens + layout.block_size - 1) / layout.block_size);
}

int32_t Batch::NextToken() {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  const auto vocab = static_cast<uint64_t>(executor_.model().config().vocab_size);
  return static_cast<int32_t>((state_ >> 33) % std::min<uint64_t>(vocab, 100000));
}

Batch::Batch(runtime::Executor& executor, cache::SlotPool& slots, int64_t batch, int64_t context)
    : executor_(executor), context_(context), size_(context) {
  const int64_t block = executor.model().page_layout().block_size;
  SENKO_CHECK(context % block == 0);
  for (int64_t p = 0; p < context / block; ++p) {
    shared_.push_back(TakePage(executor.pages()));
    shared_table_.push_back(shared_.back().index());
  }
  std::vector<int32_t> tokens(static_cast<size_t>(context));
  for (int32_t& token : tokens) token = NextToken();
  cache::SlotRef first = TakeSlot(slots);
  const int64_t kept = std::max<int64_t>(context - executor.model().config().window, 0);
  for (int64_t done = 0; done < context;) {
    model::SequenceInput s;
    s.tokens = tokens.data();
    s.begin = done;
    s.end = std::min(done + executor.max_rows(), context);
    s.pages = shared_table_.data();
    s.slot = first.data();
    s.keep_begin = s.tail_start = kept;
    executor.Run({&s, 1});
    done = s.end;
  }
  for (int64_t i = 0; i < batch; ++i) {
    Sequence sequence;
    sequence.slot = i == 0 ? std::move(first) : TakeSlot(slots);
    sequence.table = shared_table_;
    if (i > 0) {
      const runtime::BlockCopy copy{sequence.slot.data(), sequences_.front().slot.data()};
      executor.Copy({&copy, 1}, static_cast<size_t>(slots.layout().slot_bytes));
    }
    sequences_.push_back(std::move(sequence));
  }
}

void Batch::Step(int64_t rows) {
  const int64_t block = executor_.model().page_layout().block_size;
  const int64_t first = std::max<int64_t>(size_ - kLookBack, 0);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<model::SequenceInput> inputs;
  for (Sequence& sequence : sequences_) {
    while (static_cast<int64_t>(sequence.table.size()) * block < size_ + rows) {
      sequence.pages.push_back(TakePage(executor_.pages()));
      sequence.table.push_back(sequence.pages.back().index());
    }
    auto& ids = tokens.emplace_back(static_cast<size_t>(size_ + rows - first));
    for (int32_t& id : ids) id = NextToken();
    model::SequenceInput s;
    s.tokens = ids.data();
    s.tokens_begin = first;
    s.begin = size_;
    s.end = size_ + rows;
    s.pages = sequence.table.data();
    s.slot = sequence.slot.data();
    s.keep_begin = s.begin;
    s.tail_start = std::max<int64_t>(context_ - executor_.model().config().window, 0);
    inputs.push_back(s);
  }
  executor_.Run(inputs);
  size_ += rows;
}

}  // namespace senko::bench
