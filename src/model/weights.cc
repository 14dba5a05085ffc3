#include "model/weights.h"

#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "numerics/bf16.h"

namespace senko::model {
namespace {

using checkpoint::Checkpoint;
using config::ModelConfig;

// Looks tensors up by name and checks what it hands out: a mapping is only dereferenced inside its tensor.
class Binder {
 public:
  // Without a checkpoint every pointer is null.
  Binder(const Checkpoint* checkpoint, Weights& weights) : checkpoint_(checkpoint), weights_(weights) {}

  const uint8_t* Bytes(const std::string& name, DType type, int64_t elements) const {
    if (checkpoint_ == nullptr) return nullptr;
    const auto& tensor = checkpoint_->At(name);
    int64_t count = 1;
    for (int64_t dim : tensor.shape) count *= dim;
    if (tensor.dtype != type || count != elements) {
      throw Error(ErrorCode::kCorrupt, name + ": expected " + std::to_string(elements) + " elements of " +
                                           std::string(DTypeName(type)) + ", found " + std::to_string(count) + " of " +
                                           std::string(DTypeName(tensor.dtype)));
    }
    return reinterpret_cast<const uint8_t*>(tensor.bytes.data());
  }

  ops::WeightView Fp8(const std::string& name, int64_t out, int64_t in) const {
    return {ops::WeightFormat::kFp8, out, in, Bytes(name + ".weight", DType::kF8E4M3, out * in),
            Bytes(name + ".scale", DType::kF8E8M0, (out + 31) / 32 * ((in + 31) / 32))};
  }
  ops::WeightView Fp4(const std::string& name, int64_t out, int64_t in) const {
    return {ops::WeightFormat::kFp4, out, in, Bytes(name + ".weight", DType::kI8, out * in / 2),
            Bytes(name + ".scale", DType::kF8E8M0, out * (in / 32))};
  }
  ops::WeightView Bf16(const std::string& name, int64_t out, int64_t in) const {
    return {ops::WeightFormat::kBf16, out, in, Bytes(name, DType::kBF16, out * in), nullptr};
  }
  ops::WeightView F32(const std::string& name, int64_t out, int64_t in) const {
    return {ops::WeightFormat::kF32, out, in, Bytes(name, DType::kF32, out * in), nullptr};
  }

  // A small vector, widened to aligned float32. It must be finite: a NaN in a router's bias or under an index head
  // changes which rows are chosen and need not reach a logit, so nothing after this would notice it.
  const float* Bf16Vector(const std::string& name, int64_t n) {
    const uint8_t* data = Bytes(name, DType::kBF16, n);
    if (data == nullptr) return nullptr;
    float* out = NewVector(n);
    for (int64_t i = 0; i < n; ++i) {
      uint16_t code;
      std::memcpy(&code, data + 2 * i, sizeof(code));
      out[i] = numerics::Bf16ToFloat(code);
    }
    CheckFinite(name, out, n);
    return out;
  }
  const float* F32Vector(const std::string& name, int64_t n) {
    const uint8_t* data = Bytes(name, DType::kF32, n);
    if (data == nullptr) return nullptr;
    float* out = NewVector(n);
    std::memcpy(out, data, static_cast<size_t>(n) * sizeof(float));
    CheckFinite(name, out, n);
    return out;
  }

 private:
  float* NewVector(int64_t n) {
    weights_.vectors.emplace_back(static_cast<size_t>(n));
    return weights_.vectors.back().data();
  }

  void CheckFinite(const std::string& name, const float* values, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      if (std::isfinite(values[i])) continue;
      throw Error(ErrorCode::kNumerical, checkpoint_->file_path(checkpoint_->At(name).file).string() + ": " + name +
                                             ": element " + std::to_string(i) + " is " +
                                             (std::isnan(values[i]) ? "NaN" : "infinite") +
                                             "; `senko inspect --scan` lists every such value");
    }
  }

  const Checkpoint* checkpoint_;
  Weights& weights_;
};

MhcWeights BindMhc(Binder& b, const ModelConfig& c, const std::string& prefix) {
  return {b.F32(prefix + "_fn", c.mix_rows(), c.stream_dim()), b.F32Vector(prefix + "_base", c.mix_rows()),
          b.F32Vector(prefix + "_scale", 3)};
}

void BindAttention(Binder& b, const ModelConfig& c, const std::string& p, LayerWeights& w) {
  w.q_norm = b.Bf16Vector(p + "q_norm.weight", c.q_lora_rank);
  w.kv_norm = b.Bf16Vector(p + "kv_norm.weight", c.head_dim);
  w.sink = b.F32Vector(p + "attn_sink", c.num_heads);
  w.wq_a = b.Fp8(p + "wq_a", c.q_lora_rank, c.hidden_size);
  w.wq_b = b.Fp8(p + "wq_b", c.num_heads * c.head_dim, c.q_lora_rank);
  w.wkv = b.Fp8(p + "wkv", c.head_dim, c.hidden_size);
  w.wo_a = b.Fp8(p + "wo_a", c.o_groups * c.o_lora_rank, c.num_heads * c.head_dim / c.o_groups);
  w.wo_b = b.Fp8(p + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank);
  if (w.plan.owns_kv) {
    CompressorWeights compressor;
    compressor.wkv = b.Bf16(p + "compressor.wkv.weight", c.head_dim, c.hidden_size);
    if (w.plan.ratio == 2) compressor.wgate = b.Bf16(p + "compressor.wgate.weight", c.head_dim, c.hidden_size);
    compressor.norm = b.Bf16Vector(p + "compressor.norm.weight", c.head_dim);
    compressor.wk = b.Bf16(p + "indexer.wk.weight", c.index_dim, c.head_dim);
    compressor.k_norm = b.Bf16Vector(p + "indexer.k_norm.weight", c.index_dim);
    w.compressor = compressor;
  }
  if (w.plan.indexes) {
    w.indexer = IndexerWeights{b.Fp8(p + "indexer.wq_b", c.index_heads * c.index_dim, c.q_lora_rank),
                               b.Bf16(p + "indexer.weights_proj.weight", c.index_heads, c.hidden_size)};
  }
}

void BindMoe(Binder& b, const ModelConfig& c, const std::string& p, LayerWeights& w) {
  w.gate = b.Bf16(p + "gate.weight", c.num_experts, c.hidden_size);
  w.bias = b.F32Vector(p + "gate.bias", c.num_experts);
  w.bias_vl = b.F32Vector(p + "gate.bias_vl", c.num_experts);
  w.experts.reserve(static_cast<size_t>(c.num_experts));
  for (int64_t e = 0; e < c.num_experts; ++e) {
    const std::string ep = p + "experts." + std::to_string(e) + ".";
    w.experts.push_back({b.Fp4(ep + "w1", c.moe_intermediate_size, c.hidden_size),
                         b.Fp4(ep + "w3", c.moe_intermediate_size, c.hidden_size),
                         b.Fp4(ep + "w2", c.hidden_size, c.moe_intermediate_size)});
  }
  if (c.num_shared_experts > 0) {
    const std::string sp = p + "shared_experts.";
    w.shared = {b.Fp8(sp + "w1", c.shared_intermediate(), c.hidden_size),
                b.Fp8(sp + "w3", c.shared_intermediate(), c.hidden_size),
                b.Fp8(sp + "w2", c.hidden_size, c.shared_intermediate())};
  }
}

EngramWeights BindEngram(Binder& b, const ModelConfig& c, const std::string& p) {
  EngramWeights e;
  const int64_t in = (c.engram.max_ngram - 1) * c.engram.num_heads * c.engram.head_dim;
  e.wkv = b.Fp8(p + "wkv", (c.hc_mult + 1) * c.hidden_size, in);
  e.q_weight = b.Bf16Vector(p + "q_weight", c.stream_dim());
  e.k_weight = b.Bf16Vector(p + "k_weight", c.stream_dim());
  return e;
}

Weights Bind(const Checkpoint* checkpoint, const ModelConfig& config) {
  Weights weights;
  Binder b(checkpoint, weights);
  weights.embed = b.Bytes("embed.weight", DType::kBF16, config.vocab_size * config.hidden_size);
  weights.head = b.Bf16("head.weight", config.vocab_size, config.hidden_size);
  weights.norm = b.Bf16Vector("norm.weight", config.hidden_size);
  for (const config::LayerPlan& plan : config::MakeLayerSchedule(config)) {
    const std::string p = "layers." + std::to_string(plan.layer) + ".";
    LayerWeights w;
    w.plan = plan;
    w.attn_site = BindMhc(b, config, p + "hc_attn");
    w.ffn_site = BindMhc(b, config, p + "hc_ffn");
    w.attn_norm = b.Bf16Vector(p + "attn_norm.weight", config.hidden_size);
    w.ffn_norm = b.Bf16Vector(p + "ffn_norm.weight", config.hidden_size);
    BindAttention(b, config, p + "attn.", w);
    BindMoe(b, config, p + "ffn.", w);
    if (plan.engram_slot >= 0) w.engram = BindEngram(b, config, p + "engram.");
    weights.layers.push_back(std::move(w));
  }
  return weights;
}

}  // namespace

int64_t LayerWeights::ActiveBytes(int64_t experts_per_token) const {
  int64_t bytes = attn_site.fn.bytes() + ffn_site.fn.bytes() + gate.bytes();
  for (const auto* w : {&wq_a, &wq_b, &wkv, &wo_a, &wo_b, &shared.w1, &shared.w3, &shared.w2}) bytes += w->bytes();
  if (compressor) bytes += compressor->wkv.bytes() + compressor->wgate.bytes() + compressor->wk.bytes();
  if (indexer) bytes += indexer->wq_b.bytes() + indexer->weights_proj.bytes();
  if (engram) bytes += engram->wkv.bytes();
  const ops::ExpertWeights& e = experts.front();
  return bytes + experts_per_token * (e.w1.bytes() + e.w3.bytes() + e.w2.bytes());
}

int64_t Weights::ActiveBytes(int64_t experts_per_token) const {
  int64_t bytes = head.bytes();
  for (const LayerWeights& layer : layers) bytes += layer.ActiveBytes(experts_per_token);
  return bytes;
}

Weights BindWeights(const Checkpoint& checkpoint, const ModelConfig& config) { return Bind(&checkpoint, config); }

Weights DummyWeights(const ModelConfig& config) { return Bind(nullptr, config); }

}  // namespace senko::model
