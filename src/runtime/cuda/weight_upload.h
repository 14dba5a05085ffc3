// Brings stored weights to a GPU: threads read the mapping into pinned memory, a copy takes it over, a kernel permutes
// it, three of each at once.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cuda/device_buffer.h"
#include "ops/linear/linear_sm90.h"

namespace senko::runtime {

// One thread. Finish, or everything it brought is not there yet.
class WeightUpload {
 public:
  explicit WeightUpload(ThreadPool& pool);
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;
  WeightUpload& operator=(const WeightUpload&) = delete;

  // `pieces`, each a multiple of 64 outputs but for the last, one behind the other, as the tiles of one weight. Views
  // without data give random codes.
  void Tiles(const std::string& name, std::span<const ops::WeightView> pieces, uint8_t* tiles, uint8_t* scales);
  // float32 [outputs, width] as the three bf16 parts of mhc_sm90.h, in tiles.
  void SplitTiles(const std::string& name, const ops::WeightView& fn, const ops::TiledWeight& weight, uint8_t* tiles);
  // Bytes as they are; null data: random bf16 of this size.
  void Bytes(const uint8_t* data, size_t bytes, uint8_t* to);
  // Null data: every value is `otherwise`.
  void Floats(const float* data, size_t count, float otherwise, float* to);

  // Waits, and looks at what the kernels could not take. Errors: as LoadDeviceWeights.
  void Finish();

  uint64_t stored_bytes() const { return stored_bytes_; }
  // What the caller's time went into: threads copying stored bytes, and waiting for the GPU.
  double reading_seconds() const { return reading_seconds_; }
  double waiting_seconds() const { return waiting_seconds_; }

 private:
  struct Stage {
    uint8_t* pinned = nullptr;
    cuda::DeviceBuffer<uint8_t> device;
    cudaEvent_t done = nullptr;  // both may be used again
  };
  Stage& Next();
  void Put(const ops::TiledWeight& weight, const uint8_t* data, const uint8_t* scale, uint8_t* tiles, uint8_t* scales);

  ThreadPool& pool_;
  cudaStream_t stream_ = nullptr;
  std::array<Stage, 3> stages_;
  size_t next_ = 0;
  cuda::DeviceBuffer<ops::TileFaults> faults_;
  std::vector<std::string> names_;
  uint64_t stored_bytes_ = 0;
  double reading_seconds_ = 0, waiting_seconds_ = 0;
};

}  // namespace senko::runtime
