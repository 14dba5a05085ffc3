// The two passes of model/passes.cc as launches on a GPU. Every launch's shape follows from the bounds of the step's
// rows, and what is live is read on the device, so a captured pass serves every smaller step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
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
  virtual ~DevicePasses() = default;

  // The step's metadata, then every row up to the last KV source's KV.
  virtual void Encoder(const PassBounds& bounds, cudaStream_t stream) = 0;
  // The kept rows through the rest: workspace.x holds a hidden row for each. Commits windows.
  virtual void Decoder(const PassBounds& bounds, cudaStream_t stream) = 0;
  // workspace.logits of `*count` hidden rows, at most max_rows: those at `source`, or where it is null from `first` on.
  virtual void Head(const int32_t* count, int64_t max_rows, const int32_t* source, int64_t first,
                    cudaStream_t stream) = 0;

  // One stream, in order, watched. Null: branches side by side, nobody watches.
  void set_observer(PassObserver* observer) { observer_ = observer; }
  // Likewise, with what flows between operators shown and perhaps replaced; nothing is captured meanwhile.
  void set_probe(DeviceProbe* probe) { probe_ = probe; }

 protected:
  bool watched() const { return observer_ != nullptr || probe_ != nullptr; }

  PassObserver* observer_ = nullptr;
  DeviceProbe* probe_ = nullptr;
};

// Of the model's numerics. Everything outlives it; `workspace` is MakeDeviceWorkspace's. `slab`: the pages' memory.
std::unique_ptr<DevicePasses> MakeDevicePasses(const model::Model& model, const DeviceWeights& weights,
                                               const DeviceEngram& engram, const StepBatch& batch,
                                               const DeviceWorkspace& workspace, uint8_t* slab);

}  // namespace senko::runtime
