#include "text/unicode_class.h"

#include <array>
#include <cstddef>
#include <map>
#include <vector>

namespace senko::text {
namespace {

constexpr uint32_t kPairs[] = {
#include "text/unicode_class_table.inc"
};
constexpr size_t kBlock = 128;
constexpr char32_t kEnd = 0x110000;

// Two levels: a block number for every 128 code points, and the distinct blocks.
struct Tables {
  std::array<uint16_t, kEnd / kBlock> block_of{};
  std::vector<std::array<uint8_t, kBlock>> blocks;

  Tables() {
    std::map<std::array<uint8_t, kBlock>, uint16_t> known;
    std::array<uint8_t, kBlock> block{};
    size_t pair = 0;
    char32_t next_change = kPairs[0];
    uint8_t bits = 0;
    for (char32_t c = 0; c < kEnd; ++c) {
      if (c == next_change) {
        bits = static_cast<uint8_t>(kPairs[pair + 1]);
        pair += 2;
        next_change = pair < std::size(kPairs) ? c + kPairs[pair] : kEnd;
      }
      block[c % kBlock] = bits;
      if (c % kBlock == kBlock - 1) {
        const auto [at, added] = known.emplace(block, static_cast<uint16_t>(blocks.size()));
        if (added) blocks.push_back(block);
        block_of[c / kBlock] = at->second;
      }
    }
  }
};

}  // namespace

uint8_t ClassOf(char32_t code_point) {
  static const Tables tables;
  if (code_point >= kEnd) return 0;
  return tables.blocks[tables.block_of[code_point / kBlock]][code_point % kBlock];
}

}  // namespace senko::text
