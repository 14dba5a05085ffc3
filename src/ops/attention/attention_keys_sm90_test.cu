// Packed bytes to bf16 on the device, element by element: each code with each scale.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/ue8m0.h"
#include "ops/attention/attention_keys_sm90.cuh"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

class AttentionKeysSm90Test : public cuda::DeviceTest {};

// A block a scale, eight codes a thread.
__global__ void ExpandWindows(const uint2* codes, uint4* out) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  out[i] = sm90::ExpandWindow(codes[threadIdx.x], sm90::WindowScale(blockIdx.x));
}
__global__ void ExpandEntries(const uint32_t* codes, uint4* out) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  out[i] = sm90::ExpandEntry(codes[threadIdx.x], sm90::EntryScale(blockIdx.x));
}

std::vector<uint16_t> Codes(const DeviceBuffer<uint4>& out) {
  std::vector<uint16_t> codes(out.size() * 8);
  SENKO_CUDA(cudaMemcpy(codes.data(), out.data(), out.bytes(), cudaMemcpyDeviceToHost));
  return codes;
}
bool IsNan(uint16_t code) { return (code & 0x7FFF) > 0x7F80; }

// One rounding of the product and kKeyScale, infinity where it is too large; NaN with the NaN scale, whatever the
// codes. (Scale 0, and NaN codes with another scale, are never written.)
TEST_F(AttentionKeysSm90Test, WindowCodesTimesScales) {
  constexpr size_t kThreads = 8 * 32;  // every code at each of a thread's eight places
  std::vector<uint8_t> codes(kThreads * 8);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i / 8 + i % 8 * 37);
  const DeviceBuffer<uint8_t> device = ToDevice(codes);
  const DeviceBuffer<uint4> out(256 * kThreads);
  ExpandWindows<<<256, kThreads>>>(reinterpret_cast<const uint2*>(device.data()), out.data());
  SENKO_CUDA(cudaDeviceSynchronize());
  const std::vector<uint16_t> got = Codes(out);
  int64_t wrong = 0;
  for (size_t scale = 1; scale < 256; ++scale) {
    for (size_t i = 0; i < codes.size(); ++i) {
      const uint16_t code = got[scale * codes.size() + i];
      if (scale == 255) {
        wrong += !IsNan(code);
      } else if ((codes[i] & 0x7F) != 0x7F) {
        wrong += code != numerics::FloatToBf16(numerics::E4m3ToFloat(codes[i]) * sm90::kKeyScale *
                                               numerics::Ue8m0ToFloat(static_cast<uint8_t>(scale)));
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(AttentionKeysSm90Test, EntryCodesTimesScales) {
  std::mt19937_64 random(std::random_device{}());
  constexpr size_t kThreads = 256;
  std::vector<uint32_t> words(kThreads);
  for (size_t i = 0; i < kThreads; ++i) {  // every code at each of a word's eight places, then at random
    words[i] = i < 16 ? static_cast<uint32_t>(i) * 0x11111111u : static_cast<uint32_t>(random());
  }
  const DeviceBuffer<uint32_t> device = ToDevice(words);
  const DeviceBuffer<uint4> out(128 * kThreads);
  ExpandEntries<<<128, kThreads>>>(device.data(), out.data());
  SENKO_CUDA(cudaDeviceSynchronize());
  const std::vector<uint16_t> got = Codes(out);
  int64_t wrong = 0;
  for (size_t scale = 0; scale < 128; ++scale) {  // of e4m3, never negative; 0x7F is NaN
    for (size_t i = 0; i < kThreads * 8; ++i) {
      const uint16_t code = got[scale * kThreads * 8 + i];
      const float value = numerics::E2m1ToFloat(static_cast<uint8_t>(words[i / 8] >> (i % 8 * 4) & 15u));
      const float product = value * numerics::E4m3ToFloat(static_cast<uint8_t>(scale)) * sm90::kKeyScale;
      wrong += scale == 0x7F ? !IsNan(code) : code != numerics::FloatToBf16(product);
      if (scale != 0x7F) {
        ASSERT_EQ(numerics::RoundToBf16(product), product);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace senko::ops
