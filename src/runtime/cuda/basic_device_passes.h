// The passes on activations of one type: bf16 with the model's rounding points, or float without any.
#pragma once

#include <cuda_bf16.h>

#include "runtime/cuda/device_passes.h"

namespace senko::runtime {

template <typename Value>
class BasicDevicePasses final : public DevicePasses {
 public:
  BasicDevicePasses(const model::Model& model, const DeviceWeights& weights, const DeviceEngram& engram,
                    const StepBatch& batch, const BasicDeviceWorkspace<Value>& workspace, uint8_t* slab);
  ~BasicDevicePasses();
  BasicDevicePasses(const BasicDevicePasses&) = delete;
  BasicDevicePasses& operator=(const BasicDevicePasses&) = delete;

  void Encoder(const PassBounds& bounds, cudaStream_t stream) override;
  void Decoder(const PassBounds& bounds, cudaStream_t stream) override;
  void Head(const int32_t* count, int64_t max_rows, const int32_t* source, int64_t first, cudaStream_t stream) override;

 private:
  // Of the pass that is being launched.
  struct Rows {
    const DeviceRows& meta;
    int64_t max;
    Value* streams;
    float* pre;
  };
  // A sublayer's, not yet in the streams.
  struct Output {
    const Value* y = nullptr;
    int64_t slots = 1;
  };

  void Begin(std::string_view op, int64_t layer);
  void ShowStreams(const Rows& rows, int64_t layer, bool middle, const float* norm, Output& before);
  void Linear(const Rows& rows, const Value* x, const ops::TiledWeight& weight, Value* y, float* y_float = nullptr,
              const int32_t* count = nullptr);
  void Seam(const Rows& rows, Output& before, const float* norm, bool rounded);
  void Mix(const Rows& rows, const DeviceMhcSite& site);
  void JoinMix();
  void Engram(const Rows& rows, const DeviceLayer& layer);
  void GatherEngram(const PassBounds& bounds, bool decoder);
  void WriteKv(const Rows& rows, const DeviceLayer& layer, bool with_queries);
  void WriteEntries(const Rows& rows, const DeviceLayer& layer);
  void Select(const Rows& rows, const DeviceLayer& layer);
  void Attention(const Rows& rows, const DeviceLayer& layer, bool kv_written);
  void Moe(const Rows& rows, const DeviceLayer& layer);
  void Layer(const Rows& rows, const DeviceLayer& layer, bool kv_written, Output& before);
  void ProduceKv(const Rows& rows, const DeviceLayer& layer, Output& before);
  void Commit(const Rows& rows, int64_t first_layer, int64_t num_layers);
  ops::EntryView Entries(int source_slot) const;
  uint8_t* Staging(int64_t layer) const { return ws_.staging + ws_.staging_stride * static_cast<size_t>(layer); }

  const model::Model& model_;
  const config::ModelConfig& config_;
  const DeviceWeights& weights_;
  const DeviceEngram& engram_;
  const StepBatch& batch_;
  const BasicDeviceWorkspace<Value>& ws_;
  uint8_t* slab_;
  cudaStream_t main_ = nullptr;  // of the pass being launched
  int64_t max_sequences_ = 0;    // likewise: also sequences of which no row is kept have state
  cudaStream_t side_ = nullptr;  // coefficients
  cudaStream_t engram_stream_ = nullptr;
  cudaEvent_t seam_done_ = nullptr, mix_done_ = nullptr, spread_done_ = nullptr;
  cudaEvent_t engram_done_[8] = {};
  bool mix_forked_ = false;
};

}  // namespace senko::runtime
