// Byte-pair merging. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace senko::text {

// (left id, right id) -> rank and merged id. Open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: these two do not merge
    int32_t merged = -1;
  };
  explicit MergeTable(size_t merges);
  // A later rank for the same pair replaces an earlier one, as in the `tokenizers` package.
  void Set(int32_t left, int32_t right, Merge merge);
  Merge Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  size_t SlotOf(uint64_t key) const;

  size_t mask_;
  std::vector<Slot> slots_;
};

// Merges `symbols` in place: always the lowest rank, the leftmost of equals, until nothing merges. The result
// is in `symbols`. O(n^2) for short words, O(n log n) beyond. At most 2^31 - 1 symbols; every pair has its
// own rank. `stop` may be empty; false: it stopped a long word, which is left as it was.
bool MergeWord(const MergeTable& table, std::vector<int32_t>* symbols, const std::function<bool()>& stop = {});

}  // namespace senko::text
