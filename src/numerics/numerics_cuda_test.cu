// The scalar truth compiled for the device against the same headers on the host: equality of bits, over all
// 2^32 floats for the roundings, every code for the decoders and every kind of block for the quantisers. Only
// which NaN a multiplication returns may differ. Skips, saying so, where there is no GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "numerics/test_blocks.h"

namespace senko::numerics {
namespace {

// Device memory of `n` values, filled with 0xA5 so that an unwritten result shows.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    EXPECT_EQ(cudaMalloc(&data_, n * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xA5, n * sizeof(T)), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() { return data_; }
  // Waits for the device.
  void Read(std::vector<T>* host) {
    host->resize(n_);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(host->data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  }

 private:
  size_t n_;
  T* data_ = nullptr;
};

class NumericsCuda : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

// bf16, e4m3 and e2m1 code of one float, in one word.
SENKO_HD inline uint32_t AllRoundings(uint32_t bits) {
  const float x = FloatFromBits(bits);
  return static_cast<uint32_t>(FloatToBf16(x)) << 16 | static_cast<uint32_t>(FloatToE4m3(x)) << 8 | FloatToE2m1(x);
}

constexpr uint32_t kChunk = 1u << 26;  // floats a launch

__global__ void RoundChunk(uint32_t start, uint32_t* out) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kChunk; i += stride) out[i] = AllRoundings(start + i);
}

TEST_F(NumericsCuda, EveryFloatRoundsAsOnTheHost) {
  DeviceArray<uint32_t> device(kChunk);
  std::vector<uint32_t> got;
  for (uint64_t start = 0; start < (uint64_t{1} << 32); start += kChunk) {
    RoundChunk<<<1024, 256>>>(static_cast<uint32_t>(start), device.get());
    ASSERT_NO_FATAL_FAILURE(device.Read(&got));
    std::atomic<uint64_t> first_wrong{uint64_t{1} << 32};
    std::vector<std::thread> threads;
    const uint32_t workers = std::clamp(std::thread::hardware_concurrency(), 1u, 64u);
    for (uint32_t w = 0; w < workers; ++w) {
      threads.emplace_back([&, w] {
        for (uint32_t i = w * (kChunk / workers); i < (w + 1 == workers ? kChunk : (w + 1) * (kChunk / workers)); ++i) {
          if (got[i] == AllRoundings(static_cast<uint32_t>(start) + i)) continue;
          first_wrong = start + i;
          return;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    ASSERT_EQ(first_wrong >> 32, 1u) << "the float with bits " << std::hex << first_wrong << " rounds to "
                                     << got[first_wrong - start] << " on the device, "
                                     << AllRoundings(static_cast<uint32_t>(first_wrong)) << " on the host";
  }
}

SENKO_HD inline uint32_t DecodedBits(int format, uint32_t code) {
  const uint8_t byte = static_cast<uint8_t>(code);
  if (format == 0) return FloatBits(Bf16ToFloat(static_cast<uint16_t>(code)));
  if (format == 1) return FloatBits(E4m3ToFloat(byte));
  if (format == 2) return FloatBits(E2m1ToFloat(byte));
  return FloatBits(Ue8m0ToFloat(byte));
}

__global__ void DecodeAll(int format, uint32_t* out) {
  const uint32_t code = blockIdx.x * blockDim.x + threadIdx.x;
  out[code] = DecodedBits(format, code);
}

TEST_F(NumericsCuda, EveryCodeDecodesAsOnTheHost) {
  for (int format = 0; format < 4; ++format) {
    DeviceArray<uint32_t> device(65536);
    DecodeAll<<<256, 256>>>(format, device.get());
    std::vector<uint32_t> got;
    ASSERT_NO_FATAL_FAILURE(device.Read(&got));
    for (uint32_t code = 0; code < 65536; ++code) {
      ASSERT_EQ(got[code], DecodedBits(format, code)) << "format " << format << " code " << code;
    }
  }
}

// One block through all three quantisers and back.
struct BlockResult {
  float x[32];
  uint8_t fp8[32], fp4[16], fp4_16[16];
  uint8_t fp8_scale, fp4_scale, fp4_16_scale[2];
  float fp8_back[32], fp4_back[32], fp4_16_back[32];
};

SENKO_HD inline void RunBlock(int kind, uint64_t seed, uint64_t block, BlockResult* r) {
  MakeBlock(kind, seed, block, r->x);
  QuantiseFp8(r->x, r->fp8, &r->fp8_scale);
  QuantiseFp4(r->x, r->fp4, &r->fp4_scale);
  DequantiseFp8(r->fp8, r->fp8_scale, r->fp8_back);
  DequantiseFp4(r->fp4, r->fp4_scale, r->fp4_back);
  for (int half = 0; half < 2; ++half) {
    QuantiseFp4Block16(r->x + 16 * half, r->fp4_16 + 8 * half, &r->fp4_16_scale[half]);
    DequantiseFp4Block16(r->fp4_16 + 8 * half, r->fp4_16_scale[half], r->fp4_16_back + 16 * half);
  }
}

__global__ void RunBlocks(int kind, uint64_t seed, BlockResult* out) {
  const uint64_t block = blockIdx.x * blockDim.x + threadIdx.x;
  RunBlock(kind, seed, block, out + block);
}

bool SameFloats(const float* a, const float* b) {
  for (int i = 0; i < 32; ++i) {
    const bool both_nan = a[i] != a[i] && b[i] != b[i];
    if (!both_nan && FloatBits(a[i]) != FloatBits(b[i])) return false;
  }
  return true;
}

TEST_F(NumericsCuda, BlocksQuantiseAsOnTheHost) {
  constexpr uint32_t kBlocks = 1u << 17;
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    DeviceArray<BlockResult> device(kBlocks);
    RunBlocks<<<kBlocks / 128, 128>>>(kind, 21, device.get());
    std::vector<BlockResult> got;
    ASSERT_NO_FATAL_FAILURE(device.Read(&got));
    for (uint32_t b = 0; b < kBlocks; ++b) {
      BlockResult want;
      RunBlock(kind, 21, b, &want);
      ASSERT_EQ(std::memcmp(&got[b], &want, offsetof(BlockResult, fp8_back)), 0) << "kind " << kind << " block " << b;
      ASSERT_TRUE(SameFloats(got[b].fp8_back, want.fp8_back)) << "kind " << kind << " block " << b;
      ASSERT_TRUE(SameFloats(got[b].fp4_back, want.fp4_back)) << "kind " << kind << " block " << b;
      ASSERT_TRUE(SameFloats(got[b].fp4_16_back, want.fp4_16_back)) << "kind " << kind << " block " << b;
    }
  }
}

}  // namespace
}  // namespace senko::numerics
