// Survivors of the pieces of a selection, merged in pairs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "tensor/buffer.h"

namespace senko::ops {

// Sets of at most k ranks (order_key.h). Different sets may be used from different threads at once.
class RankSets {
 public:
  // Starts over with `sets` undefined sets. Memory is kept: only a greater need than any before allocates.
  void Reset(int64_t sets, int64_t k) {
    k_ = k;
    if (ranks_.size() < static_cast<size_t>(sets * 2 * k)) ranks_ = Buffer<uint64_t>(static_cast<size_t>(sets * 2 * k));
    if (counts_.size() < static_cast<size_t>(sets)) counts_ = Buffer<int64_t>(static_cast<size_t>(sets));
  }

  // At most k ranks.
  void Assign(int64_t set, std::span<const uint64_t> ranks) {
    counts_[set] = static_cast<int64_t>(ranks.size());
    std::copy(ranks.begin(), ranks.end(), Begin(set));
  }

  // `into` becomes the k best of both.
  void Merge(int64_t into, int64_t from) {
    uint64_t* const ranks = Begin(into);
    std::copy_n(Begin(from), counts_[from], ranks + counts_[into]);
    counts_[into] += counts_[from];
    if (counts_[into] <= k_) return;
    std::nth_element(ranks, ranks + k_, ranks + counts_[into], std::greater<>());
    counts_[into] = k_;
  }

  std::span<const uint64_t> Get(int64_t set) { return {Begin(set), static_cast<size_t>(counts_[set])}; }

 private:
  uint64_t* Begin(int64_t set) { return ranks_.data() + set * 2 * k_; }

  int64_t k_ = 0;
  Buffer<uint64_t> ranks_;  // [sets][2 k]: room for two sets
  Buffer<int64_t> counts_;  // [sets]
};

}  // namespace senko::ops
