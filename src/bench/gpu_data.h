// Device memory of a benchmark's case: random where it is read.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/check.h"
#include "cuda/device_buffer.h"
#include "ops/linear/linear_sm90.h"

namespace senko::bench {

// 32-bit words that look random, and are `set` where `mask` is clear.
void FillRandom(void* data, size_t bytes, uint32_t mask, uint32_t set);

class GpuData {
 public:
  template <typename T>
  T* Zeros(int64_t count) {
    auto* p = Take(static_cast<size_t>(count) * sizeof(T));
    SENKO_CUDA(cudaMemset(p, 0, owned_.back().bytes()));
    return reinterpret_cast<T*>(p);
  }
  template <typename T>
  T* Random(int64_t count, uint32_t mask, uint32_t set) {
    auto* p = Take(static_cast<size_t>(count) * sizeof(T));
    FillRandom(p, owned_.back().bytes(), mask, set);
    return reinterpret_cast<T*>(p);
  }
  template <typename T>
  T* Upload(const std::vector<T>& host) {
    auto* p = Take(host.size() * sizeof(T));
    SENKO_CUDA(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return reinterpret_cast<T*>(p);
  }
  // Of either sign, 0.5 to 1.
  __nv_bfloat16* Rows(int64_t count) { return Random<__nv_bfloat16>(count, 0x807F807Fu, 0x3F003F00u); }
  // 0.25 to 0.5.
  float* Floats(int64_t count) { return Random<float>(count, 0x007FFFFFu, 0x3E800000u); }
  int32_t* Number(int64_t n) { return Upload(std::vector<int32_t>{static_cast<int32_t>(n)}); }
  ops::TiledWeight Weight(ops::WeightFormat format, int64_t out, int64_t in) {
    ops::TiledWeight w{format, out, in, nullptr, nullptr};
    w.tiles = Codes(format, ops::TileBytes(format, out, in));
    w.scales = Scales(ops::TileScaleBytes(format, out, in));
    return w;
  }
  // Weights' codes, none of them NaN.
  uint8_t* Codes(ops::WeightFormat format, size_t bytes) {
    const bool bf16 = format == ops::WeightFormat::kBf16;
    const uint32_t mask = bf16 ? 0x80FF80FFu : format == ops::WeightFormat::kFp8 ? 0xBFBFBFBFu : ~0u;
    return Random<uint8_t>(static_cast<int64_t>(bytes), mask, bf16 ? 0x3D003D00u : 0);
  }
  uint8_t* Scales(size_t bytes) { return Random<uint8_t>(static_cast<int64_t>(bytes), 0, 0x78787878u); }

 private:
  uint8_t* Take(size_t bytes) {
    owned_.emplace_back((bytes + 255) / 256 * 256);
    return owned_.back().data();
  }
  std::vector<cuda::DeviceBuffer<uint8_t>> owned_;
};

// A copy on the device that reads and writes `bytes` together: the baseline of operators that move data.
inline std::function<void(cudaStream_t)> CopyOf(const std::shared_ptr<GpuData>& data, double bytes) {
  const auto half = static_cast<int64_t>(bytes / 2);
  auto *from = data->Zeros<uint8_t>(half), *to = data->Zeros<uint8_t>(half);
  return [data, from, to, half](cudaStream_t stream) {
    SENKO_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(half), cudaMemcpyDeviceToDevice, stream));
  };
}

}  // namespace senko::bench
