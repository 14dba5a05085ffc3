// What lies on the GPU between operators, brought to a model::Probe and back if it was changed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/probe.h"
#include "runtime/cuda/step_batch.h"

namespace senko::runtime {

// The points are the CPU passes' (model/probe.h). Every call waits for the stream; nothing may be captured meanwhile.
// What the probe changes is rounded to the type it has on the device. Used by the engine's thread.
class DeviceProbe {
 public:
  explicit DeviceProbe(model::Probe& probe) : probe_(probe) {}

  // `rows` are those of the calls from here on; their metadata is on its way in `stream`.
  void BeginPass(const DeviceRows& rows, cudaStream_t stream);

  // Values are float or __nv_bfloat16. [rows, width], row after row `stride` values apart.
  template <typename Value>
  void Floats(int64_t layer, std::string_view point, int64_t width, Value* data, int64_t stride);
  // A sublayer's input, and the same rounded as activations (or itself, of float): that follows what the probe makes of
  // it.
  template <typename Value>
  void Input(int64_t layer, std::string_view point, int64_t width, Value* x, Value* xq);
  // [rows, num_slots, width] whose sum in float32 is meant. A changed sum goes to the first slot, zeros to the others.
  template <typename Value>
  void Slots(int64_t layer, std::string_view point, int64_t width, Value* data, int64_t num_slots);
  // [entries, width] of the entries that the step completes.
  template <typename Value>
  void Entries(int64_t layer, std::string_view point, int64_t width, Value* data, const DeviceLatents& latents);
  // Entries that a row at position i chose among (i + 1) / ratio, or blocks of `block` of them.
  void Chosen(int64_t layer, std::string_view point, int64_t width, int32_t* data, int32_t* counts, int64_t ratio,
              int64_t block);
  // Experts [rows, topk].
  void Routes(int64_t layer, int64_t topk, int64_t num_experts, int32_t* ids, float* weights);

 private:
  bool Wanted(int64_t layer, std::string_view point) const;
  template <typename T>
  std::vector<T> Read(const T* data, int64_t rows, int64_t width, int64_t stride) const;
  template <typename T>
  void Write(const std::vector<T>& values, T* data, int64_t rows, int64_t width, int64_t stride) const;
  template <typename Value>
  bool Show(int64_t layer, std::string_view point, const std::vector<int64_t>& positions, int64_t width,
            std::vector<Value>* data);
  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }

  model::Probe& probe_;
  cudaStream_t stream_ = nullptr;
  std::vector<int64_t> positions_;
};

}  // namespace senko::runtime
