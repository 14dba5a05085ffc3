// Inner kernels of IndexScoreCpu: one tile of keys against all heads of one row. One set per instruction set.
#pragma once

#include <cstdint>

namespace senko::ops {

inline constexpr int64_t kTileKeys = 32;
inline constexpr int64_t kScoreBlock = 32;  // elements per scale

// Keys enter unsigned, 12 half units up, so that unsigned-by-signed byte products apply; the query's `bias`
// takes the surplus back.
inline constexpr int kKeyOffset = 12;

// e2m1 codes in half units.
inline constexpr int8_t kHalfUnits[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// One row's query, expanded. A block's 32 elements are stored in the order in which a key's nibbles come
// apart: for each 4 packed bytes the four low nibbles, then the four high ones. A dot product does not care.
struct ScoreQuery {
  int64_t heads = 0;
  int64_t blocks = 0;              // dim / 32
  int8_t* values = nullptr;        // [heads, blocks, 32] half units
  int32_t* bias = nullptr;         // [heads, blocks] -12 * sum of the block
  float* scales = nullptr;         // [heads, blocks] 2^sq / 4
  const float* weights = nullptr;  // [heads]
};

// A key inside its page.
struct KeyRef {
  const uint8_t* values = nullptr;  // [dim / 2]
  const uint8_t* scales = nullptr;  // [dim / 32]
};

inline constexpr int64_t TileScratchBytes(int64_t blocks) {
  return blocks * kTileKeys * (kScoreBlock + static_cast<int64_t>(sizeof(float)));
}

struct ScoreKernel {
  // Fills values, bias and scales from the packed query of one row.
  void (*prepare)(const uint8_t* q_values, const uint8_t* q_scales, const ScoreQuery& query);
  // out[kTileKeys] from keys[kTileKeys]. `scratch` is 64-byte aligned, TileScratchBytes long.
  void (*tile)(const ScoreQuery& query, const KeyRef* keys, uint8_t* scratch, float* out);
};

ScoreKernel ChooseScoreKernel();  // the best this machine runs

ScoreKernel PortableScoreKernel();
#if defined(__x86_64__)
ScoreKernel Avx2ScoreKernel();
ScoreKernel VnniScoreKernel();
#endif

}  // namespace senko::ops
