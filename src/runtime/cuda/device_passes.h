// The two passes of model/passes.cc as launches on a GPU. Every launch's shape follows from the bounds of the step's
// rows, and what is live is read on the device, so a captured pass serves every smaller step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "model/model.h"
#include "runtime/cuda/device_engram.h"
#include "runtime/cuda/device_probe.h"
#include "runtime/cuda/device_weights.h"
#include "runtime/cuda/device_workspace.h"
#include "runtime/cuda/step_batch.h"

namespace senko::runtime {

// Watches the passes between operators; only where nothing is captured. May wait, read and replace what lies there.
class PassObserver {
 public:
  virtual ~PassObserver() = default;
  // What is launched from here on, until the next call, belongs to `op` of `layer` (-1: none).
  virtual void Begin(std::string_view op, int64_t layer, cudaStream_t stream) = 0;
};

// How many rows a pass may have, and what that implies.
struct PassBounds {
  int64_t encoder_rows = 0;
  int64_t decoder_rows = 0;
  // Every row is kept (pure decode): the streams stay where they are.
  bool all_kept = false;
};

class DevicePasses {
 public:
  // Everything outlives it. `slab`: the pages' memory.
  DevicePasses(const model::Model& model, const DeviceWeights& weights, const DeviceEngram& engram,
               const StepBatch& batch, const DeviceWorkspace& workspace, uint8_t* slab);
  ~DevicePasses();
  DevicePasses(const DevicePasses&) = delete;
  DevicePasses& operator=(const DevicePasses&) = delete;

  // The step's metadata, then every row up to the last KV source's KV.
  void Encoder(const PassBounds& bounds, cudaStream_t stream);
  // The kept rows through the rest: workspace.x holds a hidden row for each. Commits windows.
  void Decoder(const PassBounds& bounds, cudaStream_t stream);

  // One stream, in order, watched. Null: branches side by side, nobody watches.
  void set_observer(PassObserver* observer) { observer_ = observer; }
  // Likewise, with what flows between operators shown and perhaps replaced; nothing is captured meanwhile.
  void set_probe(DeviceProbe* probe) { probe_ = probe; }

 private:
  // Of the pass that is being launched.
  struct Rows {
    const DeviceRows& meta;
    int64_t max;
    __nv_bfloat16* streams;
    float* pre;
  };
  // A sublayer's, not yet in the streams.
  struct Output {
    const __nv_bfloat16* y = nullptr;
    int64_t slots = 1;
  };

  void Begin(std::string_view op, int64_t layer);
  bool watched() const { return observer_ != nullptr || probe_ != nullptr; }
  void ShowStreams(const Rows& rows, int64_t layer, bool middle, const float* norm, Output& before);
  void Linear(const Rows& rows, const __nv_bfloat16* x, const ops::TiledWeight& weight, __nv_bfloat16* y,
              float* y_float = nullptr, const int32_t* count = nullptr);
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
  const DeviceWorkspace& ws_;
  uint8_t* slab_;
  PassObserver* observer_ = nullptr;
  DeviceProbe* probe_ = nullptr;
  cudaStream_t main_ = nullptr;  // of the pass being launched
  int64_t max_sequences_ = 0;    // likewise: also sequences of which no row is kept have state
  cudaStream_t side_ = nullptr;  // coefficients
  cudaStream_t engram_stream_ = nullptr;
  cudaEvent_t seam_done_ = nullptr, mix_done_ = nullptr, spread_done_ = nullptr;
  cudaEvent_t engram_done_[8] = {};
  bool mix_forked_ = false;
};

}  // namespace senko::runtime
