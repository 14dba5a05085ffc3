#include "text/bpe.h"

#include <bit>
#include <queue>
#include <tuple>

namespace senko::text {
namespace {

constexpr size_t kShortWord = 48;  // symbols; up to here a scan beats a heap

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

// A doubly linked list of symbols and a heap of the pairs that may merge. A pair that has changed since it was queued
// is recognised by its merged id: the symbol at a place only ever grows, so an old pair's result cannot come back.
class LongWord {
 public:
  LongWord(const MergeTable& table, const std::vector<int32_t>& symbols) : table_(table) {
    nodes_.resize(symbols.size());
    for (size_t i = 0; i < symbols.size(); ++i) {
      nodes_[i] = {symbols[i], static_cast<int64_t>(i) - 1, i + 1 < symbols.size() ? static_cast<int64_t>(i) + 1 : -1};
    }
    for (size_t i = 0; i + 1 < nodes_.size(); ++i) Queue(static_cast<int64_t>(i));
  }

  void Run(std::vector<int32_t>* symbols) {
    while (!pairs_.empty()) {
      const auto [rank, at, merged] = pairs_.top();
      pairs_.pop();
      Node& left = nodes_[at];
      if (left.symbol < 0 || left.next < 0) continue;
      Node& right = nodes_[left.next];
      if (table_.Find(left.symbol, right.symbol).merged != merged) continue;
      left.symbol = merged;
      right.symbol = -1;
      left.next = right.next;
      if (left.next >= 0) {
        nodes_[left.next].previous = at;
        Queue(at);
      }
      if (left.previous >= 0) Queue(left.previous);
    }
    symbols->clear();
    for (int64_t at = 0; at >= 0; at = nodes_[at].next) symbols->push_back(nodes_[at].symbol);
  }

 private:
  struct Node {
    int32_t symbol;  // -1: merged into its left neighbour
    int64_t previous, next;
  };
  using Pair = std::tuple<int32_t, int64_t, int32_t>;  // rank, place, merged id

  void Queue(int64_t at) {
    const Node& left = nodes_[at];
    const MergeTable::Merge merge = table_.Find(left.symbol, nodes_[left.next].symbol);
    if (merge.rank >= 0) pairs_.emplace(merge.rank, at, merge.merged);
  }

  const MergeTable& table_;
  std::vector<Node> nodes_;
  std::priority_queue<Pair, std::vector<Pair>, std::greater<Pair>> pairs_;
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

MergeTable::Merge MergeTable::Find(int32_t left, int32_t right) const {
  return slots_[SlotOf(Key(left, right))].merge;
}

void MergeWord(const MergeTable& table, std::vector<int32_t>* symbols) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kShortWord) return MergeShort(table, symbols);
  LongWord(table, *symbols).Run(symbols);
}

}  // namespace senko::text
