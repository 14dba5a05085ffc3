// The k best of a stream of (score, index) pairs, in fixed memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace senko::ops {

// Exact: ranks (order_key.h) are unique, so the k best are a set that depends neither on the order of arrival
// nor on how the stream was cut. Thread-compatible.
class RunningTopK {
 public:
  explicit RunningTopK(int64_t k = 0) { Reset(k); }

  // Starts over, for the k best. Memory is kept: only a larger k than any before allocates.
  void Reset(int64_t k);

  // Pairs (scores[i], first + i).
  void Offer(const float* scores, int64_t count, int64_t first);
  // Pairs (scores[i], indices[i]).
  void Offer(const float* scores, const int32_t* indices, int64_t count);
  // Survivors of another stream.
  void Offer(std::span<const uint64_t> ranks);

  // The min(k, offered) best ranks, in no particular order. Valid until the next call.
  std::span<const uint64_t> Best();

 private:
  template <typename IndexAt, typename LowestAt>
  void OfferScores(const float* scores, int64_t count, IndexAt index, LowestAt lowest);
  void Push(uint64_t rank);
  void Shrink();  // keeps the k best and raises the threshold

  int64_t k_ = 0;
  std::vector<uint64_t> kept_;  // never longer than capacity_
  size_t capacity_ = 0;
  uint64_t threshold_ = 0;       // ranks at or below it are not among the k best; 0: fewer than k seen
  float threshold_score_ = 0;    // of the k-th best, when that is a number
  int64_t threshold_index_ = 0;  // of the k-th best
  bool has_threshold_score_ = false;
};

}  // namespace senko::ops
