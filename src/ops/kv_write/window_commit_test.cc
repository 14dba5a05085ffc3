#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "ops/kv_write/kv_write.h"

namespace senko::ops {
namespace {

constexpr int64_t kRingOffset = 64;
constexpr int64_t kStride = 48;

// Each row's bytes name its sequence and position.
std::vector<uint8_t> RowBytes(int64_t sequence, int64_t position) {
  std::mt19937_64 random(static_cast<uint64_t>(sequence * 1000003 + position));
  std::vector<uint8_t> bytes(kStride);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

// Random walks of two sequences' rings against a map that remembers everything.
TEST(WindowCommit, TheRingHoldsTheLastRowsWhateverTheChunks) {
  for (int64_t ring_rows : {1, 7, 16, 48}) {
    std::mt19937 random(static_cast<uint32_t>(ring_rows));
    std::vector<std::vector<uint8_t>> slots(2,
                                            std::vector<uint8_t>(size_t(kRingOffset + ring_rows * kStride + 32), 0xEE));
    int64_t next[2] = {0, 1000};
    std::map<int64_t, std::vector<uint8_t>> expected[2];  // ring index -> bytes
    for (int step = 0; step < 40; ++step) {
      const int64_t counts[2] = {static_cast<int64_t>(random() % 120), static_cast<int64_t>(random() % 3)};
      std::vector<uint8_t> staging(size_t((counts[0] + counts[1] + 5) * kStride), 0xDD);
      SequenceKv sequences[2];
      int64_t begin = 2;
      for (int64_t s = 0; s < 2; ++s) {
        sequences[s].slot = slots[size_t(s)].data();
        sequences[s].first_new = next[s];
        sequences[s].staging_begin = begin;
        for (int64_t r = 0; r < counts[s]; ++r) {
          const auto bytes = RowBytes(s, next[s] + r);
          std::copy(bytes.begin(), bytes.end(), staging.begin() + (begin + r) * kStride);
          expected[s][(next[s] + r) % ring_rows] = bytes;
        }
        begin += counts[s] + 1;
        next[s] += counts[s];
      }
      WindowCommit({sequences, counts, 2, {kRingOffset, ring_rows, kStride, staging.data()}});
      for (size_t s = 0; s < 2; ++s) {
        for (const auto& [index, bytes] : expected[s]) {
          ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), slots[s].begin() + kRingOffset + index * kStride))
              << "ring " << ring_rows << " step " << step << " index " << index;
        }
        for (int64_t i = 0; i < kRingOffset; ++i) ASSERT_EQ(slots[s][size_t(i)], 0xEE);
        for (size_t i = size_t(kRingOffset + ring_rows * kStride); i < slots[s].size(); ++i)
          ASSERT_EQ(slots[s][i], 0xEE);
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
