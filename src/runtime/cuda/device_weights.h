// A model's weights on a GPU, each in its kernels' layout (linear_sm90.h, experts_sm90.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "config/layer_schedule.h"
#include "model/model.h"
#include "ops/experts/experts_sm90.h"
#include "ops/linear/linear_sm90.h"
#include "runtime/cuda/device_arena.h"
#include "runtime/cuda/start_report.h"

namespace senko::runtime {

struct DeviceMhcSite {
  ops::TiledWeight fn;  // three bf16 rows for one of float32 (mhc_sm90.h)
  const float* base = nullptr;
  const float* scale = nullptr;
};

struct DeviceCompressor {
  ops::TiledWeight wkv;  // wgate's outputs behind wkv's at ratio 2
  const float* norm = nullptr;
  ops::TiledWeight wk;
  const float* k_norm = nullptr;
};

struct DeviceIndexer {
  ops::TiledWeight wq_b;
  ops::TiledWeight weights_proj;
};

struct DeviceEngramWeights {
  ops::TiledWeight wkv;
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
};

struct DeviceLayer {
  config::LayerPlan plan;
  DeviceMhcSite attn_site, ffn_site;
  const float* attn_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* q_norm = nullptr;
  const float* kv_norm = nullptr;
  const float* sink = nullptr;
  ops::TiledWeight latents;  // wq_a's outputs, then wkv's
  ops::TiledWeight wq_a;     // the first part of `latents`
  ops::TiledWeight wkv;      // the second
  ops::TiledWeight wq_b, wo_a, wo_b;
  std::optional<DeviceCompressor> compressor;
  std::optional<DeviceIndexer> indexer;
  std::optional<DeviceEngramWeights> engram;
  ops::TiledWeight gate;
  const float* bias = nullptr;
  const float* bias_vl = nullptr;
  ops::ExpertTiles experts;
  ops::ExpertTiles shared;  // inter 0 without shared experts
};

struct DeviceWeights {
  const uint8_t* embed = nullptr;  // bf16 [vocab, D]
  ops::TiledWeight head;
  const float* norm = nullptr;
  const float* inv_freq_plain = nullptr;       // [rope_dim / 2]
  const float* inv_freq_compressed = nullptr;  // [rope_dim / 2]
  std::vector<DeviceLayer> layers;
};

// What the kernels compute; `rounds`: with the model's rounding points. Errors: kUnsupported naming every field of the
// configuration that they do not.
void CheckDeviceLimits(const config::ModelConfig& config, bool rounds);

// Bytes on the device; nothing is read or allocated.
size_t DeviceWeightBytes(const model::Model& model);

// Lays the weights out in `arena`, whose size is DeviceWeightBytes, and brings them there: read by `pool`'s threads
// into pinned memory, copied, permuted on the device, all at once. Of a model without a checkpoint they are random.
// Errors: kNumerical naming the tensor with a NaN code, kUnsupported the one whose scales no kernel can compute with.
// `report`: its times.
DeviceWeights LoadDeviceWeights(const model::Model& model, DeviceArena& arena, ThreadPool& pool,
                                const ProgressSink& progress, StartReport* report);

}  // namespace senko::runtime
