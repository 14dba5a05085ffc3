// The quantisers over lanes and the conversions that the GPU has instructions for, against the scalar truth: equality
// of bits, over all 2^32 floats for the conversions and every kind of block for the quantisers. Skips, saying so, where
// there is no GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/bf16_lanes.cuh"
#include "numerics/fp4_lanes.cuh"
#include "numerics/fp8_lanes.cuh"
#include "numerics/quantise.h"
#include "numerics/test_blocks.h"

namespace senko::numerics {
namespace {

class LanesCuda : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

// Device memory that `T` lies in for the host too.
template <typename T>
class Managed {
 public:
  explicit Managed(size_t n) { EXPECT_EQ(cudaMallocManaged(&data_, n * sizeof(T)), cudaSuccess); }
  ~Managed() { cudaFree(data_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  T* get() { return data_; }

 private:
  T* data_ = nullptr;
};

struct Wrong {
  unsigned long long bf16, e4m3, e2m1;  // floats that convert otherwise than by the headers
};

// Their device code is held against the host's by numerics_cuda_test.
__global__ void ConvertAll(Wrong* wrong) {
  Wrong mine{};
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t bits = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; bits < (uint64_t{1} << 32); bits += threads) {
    const float x = FloatFromBits(static_cast<uint32_t>(bits));
    const bool nan = x != x;
    const uint32_t bf16 = PairToBf16(1.0f, x), e4m3 = PairToE4m3(-0.5f, x);
    const bool bf16_same = nan ? (bf16 >> 16 & 0x7FFFu) > 0x7F80u : bf16 >> 16 == FloatToBf16(x);
    const bool e4m3_same = nan ? e4m3 >> 8 == kE4m3Nan : e4m3 >> 8 == FloatToE4m3(x);
    mine.bf16 += !bf16_same || (bf16 & 0xFFFFu) != 0x3F80u;
    mine.e4m3 += !e4m3_same || (e4m3 & 0xFFu) != 0xB0u;
    mine.e2m1 += E2m1Code(x) != FloatToE2m1(x);
  }
  if (mine.bf16 != 0) atomicAdd(&wrong->bf16, mine.bf16);
  if (mine.e4m3 != 0) atomicAdd(&wrong->e4m3, mine.e4m3);
  if (mine.e2m1 != 0) atomicAdd(&wrong->e2m1, mine.e2m1);
}

TEST_F(LanesCuda, EveryFloatConvertsAsByTheHeaders) {
  Managed<Wrong> wrong(1);
  *wrong.get() = {};
  ConvertAll<<<1024, 256>>>(wrong.get());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(wrong.get()->bf16, 0u);
  EXPECT_EQ(wrong.get()->e4m3, 0u);
  EXPECT_EQ(wrong.get()->e2m1, 0u);
}

__global__ void DecodeAll(uint32_t* out) {
  const float2 two = E4m3PairToFloat(threadIdx.x | (255u - threadIdx.x) << 8);
  out[2 * threadIdx.x] = FloatBits(two.x);
  out[2 * threadIdx.x + 1] = FloatBits(two.y);
}

TEST_F(LanesCuda, EveryE4m3CodeDecodesAsByTheHeaders) {
  Managed<uint32_t> out(512);
  DecodeAll<<<1, 256>>>(out.get());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (uint32_t i = 0; i < 512; ++i) {
    const float want = E4m3ToFloat(static_cast<uint8_t>(i % 2 == 0 ? i / 2 : 255 - i / 2));
    const float got = FloatFromBits(out.get()[i]);
    EXPECT_TRUE(want != want ? got != got : FloatBits(want) == FloatBits(got)) << i;
  }
}

// One block through all three quantisers, and rounded.
struct Packed {
  uint8_t fp8[32], fp4[16], fp4_16[16];
  uint8_t fp8_scale, fp4_scale, fp4_16_scale[2];
};
struct Result {
  Packed packed;
  float rounded[32], over_warp[32];
};

// Four lanes a block.
__global__ void QuantiseBlocks(int kind, uint64_t seed, Result* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, block = thread / 4, part = thread % 4;
  float all[32], x[8];
  MakeBlock(kind, seed, block, all);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) x[i] = all[part * 8 + i];
  Packed& to = out[block].packed;
  const Fp8Lanes fp8 = QuantiseFp8OverLanes(x);
  const Fp4Lanes fp4 = QuantiseFp4OverLanes(x), fp4_16 = QuantiseFp4Block16OverLanes(x);
  memcpy(to.fp8 + part * 8, &fp8.codes, 8);
  memcpy(to.fp4 + part * 4, &fp4.codes, 4);
  memcpy(to.fp4_16 + part * 4, &fp4_16.codes, 4);
  // The last lane of each block stores its scale, so that all lanes are seen to have it over the kinds.
  if (part == 3) to.fp8_scale = fp8.scale;
  if (part == 2) to.fp4_scale = fp4.scale;
  if (part % 2 == 1) to.fp4_16_scale[part / 2] = fp4_16.scale;
  RoundFp8OverLanes(x);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) out[block].rounded[part * 8 + i] = x[i];
}

// A warp a block.
__global__ void RoundBlocks(int kind, uint64_t seed, Result* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, block = thread / 32, lane = thread % 32;
  float all[32];
  MakeBlock(kind, seed, block, all);
  out[block].over_warp[lane] = RoundFp8OverWarp(all[lane]);
}

bool Same(float got, float want) { return want != want ? got != got : FloatBits(got) == FloatBits(want); }

TEST_F(LanesCuda, BlocksQuantiseAsByTheHeaders) {
  constexpr uint32_t kBlocks = 1u << 18;
  Managed<Result> results(kBlocks);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    ASSERT_EQ(cudaMemset(results.get(), 0xA5, kBlocks * sizeof(Result)), cudaSuccess);
    QuantiseBlocks<<<kBlocks * 4 / 128, 128>>>(kind, seed, results.get());
    RoundBlocks<<<kBlocks * 32 / 128, 128>>>(kind, seed, results.get());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const Result& got = results.get()[b];
      float x[32], rounded[32];
      Packed want;
      MakeBlock(kind, seed, b, x);
      QuantiseFp8(x, want.fp8, &want.fp8_scale);
      QuantiseFp4(x, want.fp4, &want.fp4_scale);
      for (int half = 0; half < 2; ++half) {
        QuantiseFp4Block16(x + 16 * half, want.fp4_16 + 8 * half, &want.fp4_16_scale[half]);
      }
      DequantiseFp8(want.fp8, want.fp8_scale, rounded);
      ASSERT_EQ(std::memcmp(&got.packed, &want, sizeof(Packed)), 0) << "kind " << kind << " block " << b;
      for (int i = 0; i < 32; ++i) {
        ASSERT_TRUE(Same(got.rounded[i], rounded[i])) << "kind " << kind << " block " << b << " at " << i;
        ASSERT_TRUE(Same(got.over_warp[i], rounded[i])) << "kind " << kind << " block " << b << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace senko::numerics
