#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace senko::text {
namespace {

constexpr size_t kShortWord = 48;            // symbols; up to here a scan beats a heap
constexpr uint64_t kStepsUnasked = 1 << 15;  // of a long word, a few milliseconds

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

void MergeShort(const MergeTable& table, std::vector<int32_t>* symbols) {
  MergeTable::Merge merges[kShortWord];
  size_t count = symbols->size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = table.Find((*symbols)[i], (*symbols)[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i].rank >= 0 && (best == count || merges[i].rank < merges[best].rank)) best = i;
    }
    if (best == count) break;
    (*symbols)[best] = merges[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      (*symbols)[i] = (*symbols)[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    if (best > 0) merges[best - 1] = table.Find((*symbols)[best - 1], (*symbols)[best]);
    if (best + 1 < count) merges[best] = table.Find((*symbols)[best], (*symbols)[best + 1]);
  }
  symbols->resize(count);
}

// A doubly linked list of symbols and a heap of the pairs that may merge, as rank << 32 | place: the lowest
// rank, then the leftmost. A pair that has changed since it was queued is recognised by its rank, which no
// other pair has.
class LongWord {
 public:
  LongWord(const MergeTable& table, const std::vector<int32_t>& symbols, const std::function<bool()>& stop)
      : table_(table), stop_(stop), nodes_(symbols.size()) {
    const auto count = static_cast<int32_t>(symbols.size());
    for (int32_t i = 0; i < count; ++i) nodes_[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < count && !Stopped(); ++i) {
      const int32_t rank = RankAt(i);
      if (rank >= 0) heap_.push_back(Entry(rank, i));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  bool Run(std::vector<int32_t>* symbols) {
    while (!heap_.empty() && !Stopped()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const auto rank = static_cast<int32_t>(heap_.back() >> 32);
      const auto at = static_cast<int32_t>(heap_.back() & 0xFFFFFFFF);
      heap_.pop_back();
      Node& left = nodes_[at];
      if (left.symbol < 0 || left.next < 0) continue;
      Node& right = nodes_[left.next];
      const MergeTable::Merge merge = table_.Find(left.symbol, right.symbol);
      if (merge.rank != rank) continue;
      left.symbol = merge.merged;
      right.symbol = -1;
      left.next = right.next;
      if (left.next >= 0) {
        nodes_[left.next].previous = at;
        Queue(at);
      }
      if (left.previous >= 0) Queue(left.previous);
    }
    if (stopped_) return false;
    symbols->clear();
    for (int32_t at = 0; at >= 0; at = nodes_[at].next) symbols->push_back(nodes_[at].symbol);
    return true;
  }

 private:
  struct Node {
    int32_t symbol;  // -1: merged into its left neighbour
    int32_t previous, next;
  };

  static uint64_t Entry(int32_t rank, int32_t at) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(at);
  }
  bool Stopped() {
    if (!stopped_ && ++steps_ % kStepsUnasked == 0 && stop_) stopped_ = stop_();
    return stopped_;
  }
  int32_t RankAt(int32_t at) const { return table_.Find(nodes_[at].symbol, nodes_[nodes_[at].next].symbol).rank; }
  void Queue(int32_t at) {
    const int32_t rank = RankAt(at);
    if (rank < 0) return;
    heap_.push_back(Entry(rank, at));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  const MergeTable& table_;
  const std::function<bool()>& stop_;
  std::vector<Node> nodes_;
  std::vector<uint64_t> heap_;
  uint64_t steps_ = 0;
  bool stopped_ = false;
};

}  // namespace

MergeTable::MergeTable(size_t merges) : mask_(std::bit_ceil(merges * 2 + 2) - 1), slots_(mask_ + 1) {}

size_t MergeTable::SlotOf(uint64_t key) const {
  uint64_t mixed = key * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 32;
  size_t slot = mixed & mask_;
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  return slot;
}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  slots_[SlotOf(key)] = {key, merge};
}

MergeTable::Merge MergeTable::Find(int32_t left, int32_t right) const { return slots_[SlotOf(Key(left, right))].merge; }

bool MergeWord(const MergeTable& table, std::vector<int32_t>* symbols, const std::function<bool()>& stop) {
  if (symbols->size() < 2) return true;
  if (symbols->size() <= kShortWord) {
    MergeShort(table, symbols);
    return true;
  }
  SENKO_CHECK(symbols->size() < size_t{1} << 31);
  return LongWord(table, *symbols, stop).Run(symbols);
}

}  // namespace senko::text
