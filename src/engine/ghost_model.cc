#include "engine/ghost_model.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace senko::engine::ghost {
namespace {

constexpr int64_t kWord = sizeof(uint64_t);

}  // namespace

config::PageLayout PageLayoutOf(const Shape& shape) {
  config::PageLayout layout;
  layout.block_size = shape.block_size;
  layout.page_bytes = (shape.block_size + shape.block_size / 2) * kWord;
  return layout;
}

config::SlotLayout SlotLayoutOf(const Shape& shape) {
  config::SlotLayout layout;
  layout.ring_rows = shape.ring_rows;
  layout.slot_bytes = kLayers * shape.ring_rows * 2 * kWord + shape.pending_rows * kWord;
  return layout;
}

Executor::RingRow& Executor::Ring(int32_t slot, int layer, int64_t position) {
  auto* rows = reinterpret_cast<RingRow*>(slots_.data(slot));
  return rows[layer * shape_.ring_rows + position % shape_.ring_rows];
}

uint64_t& Executor::Pending(int32_t slot, int64_t position) {
  auto* rows = reinterpret_cast<RingRow*>(slots_.data(slot)) + kLayers * shape_.ring_rows;
  return reinterpret_cast<uint64_t*>(rows)[position / 2 % shape_.pending_rows];
}

uint64_t Executor::PageEntry1(int32_t page, int64_t offset) const {
  return reinterpret_cast<const uint64_t*>(pages_.data(page))[offset];
}
uint64_t Executor::PageEntry2(int32_t page, int64_t offset) const {
  return reinterpret_cast<const uint64_t*>(pages_.data(page))[shape_.block_size + offset];
}

uint64_t& Executor::Entry1At(const StepPlan& plan, const PlannedSpan& span, int64_t entry) {
  const int64_t page = entry / shape_.block_size;
  SENKO_CHECK(page < span.num_pages);
  uint8_t* data = pages_.data(plan.pages[static_cast<size_t>(span.first_page + page)]);
  return reinterpret_cast<uint64_t*>(data)[entry % shape_.block_size];
}

uint64_t& Executor::Entry2At(const StepPlan& plan, const PlannedSpan& span, int64_t entry) {
  const int64_t per_page = shape_.block_size / 2, page = entry / per_page;
  SENKO_CHECK(page < span.num_pages);
  uint8_t* data = pages_.data(plan.pages[static_cast<size_t>(span.first_page + page)]);
  return reinterpret_cast<uint64_t*>(data)[shape_.block_size + entry % per_page];
}

// Rows [from, end) read window, and entries that are visible at this layer; then the layer's keys enter the ring.
void Executor::Attend(const StepPlan& plan, const PlannedSpan& span, int layer, int64_t from, int64_t floor,
                      const std::vector<uint64_t>& keys, std::vector<uint64_t>* rows) {
  const int64_t keys_from = span.end - static_cast<int64_t>(keys.size());
  for (int64_t i = from; i < span.end; ++i) {
    uint64_t x = (*rows)[static_cast<size_t>(i - span.begin)];
    for (int64_t j = std::min(i, std::max({int64_t{0}, i - shape_.window + 1, floor})); j <= i; ++j) {
      if (j >= keys_from) {
        x = Mix(x, keys[static_cast<size_t>(j - keys_from)]);
      } else {
        const RingRow& row = Ring(span.slot, layer, j);
        SENKO_CHECK(row.position == j || lost_.contains(span.sequence));
        x = Mix(x, row.key);
      }
    }
    for (int64_t e = 0; e <= i; ++e) x = Mix(x, Entry1At(plan, span, e));
    if (layer >= kSeam) {
      for (int64_t e = 0; e < (i + 1) / 2; ++e) x = Mix(x, Entry2At(plan, span, e));
    }
    (*rows)[static_cast<size_t>(i - span.begin)] = x;
  }
  const int64_t first = std::max(keys_from, span.end - shape_.ring_rows);
  for (int64_t p = first; p < span.end; ++p) {
    Ring(span.slot, layer, p) = {p, keys[static_cast<size_t>(p - keys_from)]};
  }
}

void Executor::RunSpan(const StepPlan& plan, int64_t index) {
  const PlannedSpan& span = plan.spans[static_cast<size_t>(index)];
  SENKO_CHECK(0 <= span.begin && span.begin < span.end && span.slot >= 0);
  std::vector<uint64_t> x;
  for (int64_t p = span.begin; p < span.end; ++p) {
    uint64_t embedded = Embed(ids_[static_cast<size_t>(p - span.ids_begin)]);
    // As Engram: the ids before, as far as the sequence goes.
    for (int64_t back = 1; back <= 3; ++back) {
      if (p - back >= 0)
        embedded = Mix(embedded, static_cast<uint64_t>(ids_.at(static_cast<size_t>(p - back - span.ids_begin))));
    }
    x.push_back(embedded);
  }
  for (int64_t p = std::max(span.begin, span.write_floor); p < span.end; ++p) {
    Entry1At(plan, span, p) = Entry1(x[static_cast<size_t>(p - span.begin)]);
  }
  for (int layer = 0; layer < kSeam; ++layer) {
    std::vector<uint64_t> keys;
    for (uint64_t row : x) keys.push_back(Key(row, layer));
    Attend(plan, span, layer, span.begin, span.replay_start, keys, &x);
  }
  for (int64_t p = std::max(span.begin, span.write_floor); p < span.end; ++p) {
    if (p % 2 == 0) continue;
    const uint64_t first = p > span.begin ? x[static_cast<size_t>(p - 1 - span.begin)] : Pending(span.slot, p - 1);
    Entry2At(plan, span, p / 2) = Entry2(first, x[static_cast<size_t>(p - span.begin)]);
  }
  for (int64_t p = span.begin; p < span.end; ++p) {
    if (p % 2 == 0) Pending(span.slot, p) = x[static_cast<size_t>(p - span.begin)];
  }
  const int64_t kept = span.end - span.kept_rows();
  for (int layer = kSeam; layer < kLayers; ++layer) {
    std::vector<uint64_t> keys;
    for (int64_t p = layer == kSeam ? span.begin : kept; p < span.end; ++p) {
      keys.push_back(Key(x[static_cast<size_t>(p - span.begin)], layer));
    }
    Attend(plan, span, layer, kept, layer == kSeam ? span.replay_start : span.tail_start, keys, &x);
  }
  for (int64_t p = kept; p < span.end; ++p) logits_[{index, p}] = x[static_cast<size_t>(p - span.begin)];
}

StepResult Executor::Run(const StepPlan& plan, int propose, uint64_t random) {
  logits_.clear();
  for (const PlannedSample& sample : plan.samples) {
    if (lost_.contains(plan.spans[static_cast<size_t>(sample.span)].sequence)) lost_.insert(sample.sequence);
  }
  for (const PlannedSpan& span : plan.spans) {
    if (unloaded_.contains(span.slot)) lost_.insert(span.sequence);
  }
  unloaded_.clear();
  for (const Copy& copy : plan.load_snapshots) {
    std::memcpy(slots_.data(copy.to), snapshots_.data(copy.from), static_cast<size_t>(slots_.layout().slot_bytes));
  }
  for (size_t i = 0; i < plan.spans.size(); ++i) {
    const PlannedSpan& span = plan.spans[i];
    ids_.clear();
    for (int64_t k = 0; k < span.end - span.ids_begin; ++k) {
      TokenSource id = plan.ids[static_cast<size_t>(span.first_id + k)];
      if (id < 0) {
        SENKO_CHECK(last_step_ + 1 == plan.step);
        id = last_tokens_.at(static_cast<size_t>(-1 - id));
      }
      ids_.push_back(id);
    }
    RunSpan(plan, static_cast<int64_t>(i));
  }
  StepResult result;
  result.step = plan.step;
  for (const PlannedSample& sample : plan.samples) {
    result.tokens.push_back(Draw(logits_.at({sample.span, sample.position}), sample.sequence, sample.position, vocab_));
  }
  std::vector<int64_t> first_sample(plan.spans.size(), -1);
  for (size_t i = plan.samples.size(); i-- > 0;)
    first_sample[static_cast<size_t>(plan.samples[i].span)] = static_cast<int64_t>(i);
  for (size_t i = 0; i < plan.spans.size(); ++i) {
    const PlannedSpan& span = plan.spans[i];
    result.drafts.emplace_back();
    if (first_sample[i] < 0) continue;
    if (span.drafts > 0) {
      int32_t committed = 1;
      const int32_t* drafts = &plan.ids[static_cast<size_t>(span.first_id + span.end - span.ids_begin - span.drafts)];
      const int32_t* draws = &result.tokens[static_cast<size_t>(first_sample[i])];
      while (committed <= span.drafts && draws[committed - 1] == drafts[committed - 1]) ++committed;
      result.committed.push_back(committed);
    }
    for (int k = 0; k < propose; ++k) {
      random = Mix(random, static_cast<uint64_t>(k));
      result.drafts.back().push_back(static_cast<int32_t>((random >> 40) % static_cast<uint64_t>(vocab_)));
    }
  }
  for (const Copy& copy : plan.copy_pages) {
    std::memcpy(pages_.data(copy.to), pages_.data(copy.from), static_cast<size_t>(pages_.layout().page_bytes));
  }
  for (const Copy& copy : plan.copy_slots) {
    std::memcpy(slots_.data(copy.to), slots_.data(copy.from), static_cast<size_t>(slots_.layout().slot_bytes));
  }
  for (const Copy& copy : plan.save_snapshots) {
    std::memcpy(snapshots_.data(copy.to), slots_.data(copy.from), static_cast<size_t>(slots_.layout().slot_bytes));
  }
  last_tokens_ = result.tokens;
  last_step_ = plan.step;
  return result;
}

StepResult Executor::Fail(const StepPlan& plan) {
  logits_.clear();
  StepResult result;
  result.step = plan.step;
  result.ran = false;
  result.tokens.assign(plan.samples.size(), -1);
  for (const PlannedSpan& span : plan.spans) {
    if (span.drafts > 0) result.committed.push_back(1);
  }
  for (const Copy& copy : plan.load_snapshots) unloaded_.insert(copy.to);
  last_tokens_.assign(plan.samples.size(), 0);  // what a step behind it feeds
  for (const PlannedSpan& span : plan.spans) lost_.insert(span.sequence);
  for (const PlannedSample& sample : plan.samples) lost_.insert(sample.sequence);
  last_step_ = plan.step;
  return result;
}

Oracle::Oracle(const Shape& shape, std::vector<int32_t> before, std::vector<uint64_t> adopted1,
               std::vector<uint64_t> adopted2, int64_t keep_begin)
    : shape_(shape),
      tokens_(std::move(before)),
      entries1_(std::move(adopted1)),
      entries2_(std::move(adopted2)),
      start_(static_cast<int64_t>(tokens_.size())),
      adopted_(static_cast<int64_t>(entries1_.size())),
      keep_begin_(keep_begin) {}

void Oracle::Truncate(int64_t size) {
  if (size >= this->size()) return;
  tokens_.resize(static_cast<size_t>(size));
  rows_.resize(static_cast<size_t>(size - start_));
  entries1_.resize(static_cast<size_t>(std::max(size, adopted_)));
  entries2_.resize(static_cast<size_t>(std::max(size, adopted_) / 2));
}

uint64_t Oracle::PageSum(int64_t page) const {
  const int64_t size = shape_.block_size;
  uint64_t sum = 0;
  for (int64_t e = 0; e < size; ++e) sum = Mix(sum, entries1_[static_cast<size_t>(page * size + e)]);
  for (int64_t e = 0; e < size / 2; ++e) sum = Mix(sum, entries2_[static_cast<size_t>(page * size / 2 + e)]);
  return sum;
}

uint64_t Oracle::Next(int32_t token) {
  const int64_t i = size();
  tokens_.push_back(token);
  uint64_t x = Embed(token);
  for (int64_t back = 1; back <= 3; ++back) {
    if (i - back >= 0) x = Mix(x, static_cast<uint64_t>(tokens_[static_cast<size_t>(i - back)]));
  }
  rows_.emplace_back();
  if (i == static_cast<int64_t>(entries1_.size())) entries1_.push_back(Entry1(x));
  for (int layer = 0; layer < kLayers; ++layer) {
    rows_.back().input[layer] = x;
    if (layer == kSeam) {
      if (i % 2 == 1 && i / 2 == static_cast<int64_t>(entries2_.size())) {
        entries2_.push_back(Entry2(rows_[rows_.size() - 2].input[kSeam], x));
      }
      if (i < keep_begin_) return 0;
    }
    const int64_t floor = layer > kSeam ? std::max(keep_begin_, start_) : start_;
    for (int64_t j = std::max(i - shape_.window + 1, floor); j <= i; ++j) {
      x = Mix(x, Key(rows_[static_cast<size_t>(j - start_)].input[layer], layer));
    }
    for (int64_t e = 0; e <= i; ++e) x = Mix(x, entries1_[static_cast<size_t>(e)]);
    if (layer >= kSeam) {
      for (int64_t e = 0; e < (i + 1) / 2; ++e) x = Mix(x, entries2_[static_cast<size_t>(e)]);
    }
  }
  return x;
}

}  // namespace senko::engine::ghost
