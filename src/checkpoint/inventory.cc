#include "checkpoint/inventory.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "checkpoint/safetensors_header.h"
#include "config/layer_schedule.h"

namespace senko::checkpoint {
namespace {

using Shape = std::vector<int64_t>;

class Inventory {
 public:
  explicit Inventory(const config::ModelConfig& config) : c_(config) {}

  std::vector<ExpectedTensor> Take() { return std::move(tensors_); }

  void AddGlobals() {
    group_ = TensorGroup::kEmbedAndHead;
    Add("embed.weight", DType::kBF16, {c_.vocab_size, c_.hidden_size}, TensorRole::kEmbedding);
    Add("head.weight", DType::kBF16, {c_.vocab_size, c_.hidden_size}, TensorRole::kHead);
    group_ = TensorGroup::kNormsAndSinks;
    Norm("norm.weight", c_.hidden_size);
  }

  void AddLayer(const config::LayerPlan& plan) {
    const std::string layer = "layers." + std::to_string(plan.layer) + ".";
    if (plan.engram_slot >= 0) AddEngram(layer + "engram.", static_cast<size_t>(plan.engram_slot));
    AddBlock(layer, c_.num_experts, false);
    if (plan.owns_kv) {
      group_ = TensorGroup::kCompressors;
      Bf16(layer + "attn.compressor.wkv", c_.head_dim, c_.hidden_size);
      if (plan.ratio == 2) Bf16(layer + "attn.compressor.wgate", c_.head_dim, c_.hidden_size);
      Norm(layer + "attn.compressor.norm.weight", c_.head_dim);
      group_ = TensorGroup::kIndexers;
      Bf16(layer + "attn.indexer.wk", c_.index_dim, c_.head_dim);
      Norm(layer + "attn.indexer.k_norm.weight", c_.index_dim);
    }
    if (plan.indexes) {
      group_ = TensorGroup::kIndexers;
      Fp8(layer + "attn.indexer.wq_b", c_.index_heads * c_.index_dim, c_.q_lora_rank);
      Bf16(layer + "attn.indexer.weights_proj", c_.index_heads, c_.hidden_size);
    }
  }

  void AddDrafts() {
    const config::DsparkConfig& d = c_.dspark;
    for (int64_t stage = 0; stage < d.num_stages; ++stage) {
      const std::string prefix = "mtp." + std::to_string(stage) + ".";
      AddBlock(prefix, d.num_experts, true);
      group_ = TensorGroup::kMtpOther;
      if (stage == 0) {
        Fp8(prefix + "main_proj", c_.hidden_size, c_.hidden_size * static_cast<int64_t>(d.target_layers.size()));
        Norm(prefix + "main_norm.weight", c_.hidden_size);
      }
      if (stage != d.num_stages - 1) continue;
      Norm(prefix + "norm.weight", c_.hidden_size);
      Add(prefix + "markov_head.embed.weight", DType::kBF16, {c_.vocab_size, d.markov_rank}, TensorRole::kEmbedding);
      Bf16(prefix + "markov_head.head", c_.vocab_size, d.markov_rank);
      Bf16(prefix + "confidence_head.proj", 1, c_.hidden_size + d.markov_rank);
    }
  }

  void AddVision() {
    const config::VisionConfig& v = c_.vision;
    if (v.num_layers == 0) return;
    group_ = TensorGroup::kVision;
    Bf16("vision.patch_embed.proj", v.hidden_size, 3 * v.patch_size * v.patch_size);
    tensors_.back().other_shape = {v.hidden_size, 3, v.patch_size, v.patch_size};
    Bias("vision.patch_embed.proj.bias", v.hidden_size);
    for (int64_t block = 0; block < v.num_layers; ++block) {
      const std::string prefix = "vision.blocks." + std::to_string(block) + ".";
      Norm(prefix + "norm1.weight", v.hidden_size);
      Norm(prefix + "norm2.weight", v.hidden_size);
      Bf16(prefix + "attn.wqkv", 3 * v.hidden_size, v.hidden_size);
      Bias(prefix + "attn.wqkv.bias", 3 * v.hidden_size);
      Bf16(prefix + "attn.wo", v.hidden_size, v.hidden_size);
      Bias(prefix + "attn.wo.bias", v.hidden_size);
      Bf16(prefix + "mlp.w1", 2 * v.intermediate_size, v.hidden_size);
      Bf16(prefix + "mlp.w2", v.hidden_size, v.intermediate_size);
    }
    Norm("vision.norm.weight", v.hidden_size);
    Bf16("aligner.w1", c_.hidden_size, v.downsample_ratio * v.downsample_ratio * v.hidden_size);
    Bias("aligner.w1.bias", c_.hidden_size);
    Bf16("aligner.w2", c_.hidden_size, c_.hidden_size);
    Bias("aligner.w2.bias", c_.hidden_size);
    for (const char* name : {"image_start", "image_end", "image_newline"}) {
      Add(name, DType::kBF16, {c_.hidden_size}, TensorRole::kEmbedding);
    }
  }

 private:
  void Add(const std::string& name, DType dtype, Shape shape, TensorRole role, int64_t fan_in = 1) {
    tensors_.push_back({name, dtype, std::move(shape), group_, role, fan_in, {}});
  }
  void Norm(const std::string& name, int64_t size) { Add(name, DType::kBF16, {size}, TensorRole::kNorm); }
  void Bias(const std::string& name, int64_t size) { Add(name, DType::kBF16, {size}, TensorRole::kBias); }
  void Bf16(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", DType::kBF16, {out, in}, TensorRole::kBf16Weight, in);
  }
  void Fp8(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", DType::kF8E4M3, {out, in}, TensorRole::kFp8Weight, in);
    Add(name + ".scale", DType::kF8E8M0, {(out + 31) / 32, (in + 31) / 32}, TensorRole::kFp8Scale, in);
  }
  void Fp4(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", DType::kI8, {out, in / 2}, TensorRole::kFp4Weight, in);
    Add(name + ".scale", DType::kF8E8M0, {out, in / 32}, TensorRole::kFp4Scale, in);
  }

  void AddEngram(const std::string& prefix, size_t slot) {
    const config::EngramConfig& e = c_.engram;
    group_ = TensorGroup::kEngramTables;
    Add(prefix + "embed.weight", DType::kF8E4M3, {e.rows[slot], e.head_dim}, TensorRole::kTable);
    Add(prefix + "embed.scale", DType::kF8E8M0, {e.rows[slot], e.head_dim / 32}, TensorRole::kTableScale);
    group_ = TensorGroup::kEngramProjections;
    Fp8(prefix + "wkv", (c_.hc_mult + 1) * c_.hidden_size, (e.max_ngram - 1) * e.num_heads * e.head_dim);
    Add(prefix + "q_weight", DType::kBF16, {c_.hc_mult, c_.hidden_size}, TensorRole::kNorm);
    Add(prefix + "k_weight", DType::kBF16, {c_.hc_mult, c_.hidden_size}, TensorRole::kNorm);
  }

  // What a backbone layer and a draft stage have in common.
  void AddBlock(const std::string& prefix, int64_t experts, bool draft) {
    const auto group = [&](TensorGroup backbone) { group_ = draft ? TensorGroup::kMtpOther : backbone; };
    const std::string attn = prefix + "attn.", ffn = prefix + "ffn.";
    group(TensorGroup::kNormsAndSinks);
    Norm(prefix + "attn_norm.weight", c_.hidden_size);
    Norm(prefix + "ffn_norm.weight", c_.hidden_size);
    Norm(attn + "q_norm.weight", c_.q_lora_rank);
    Norm(attn + "kv_norm.weight", c_.head_dim);
    Add(attn + "attn_sink", DType::kF32, {c_.num_heads}, TensorRole::kSink);
    group(TensorGroup::kHyperConnections);
    for (const char* site : {"hc_attn_", "hc_ffn_"}) {
      Add(prefix + site + "fn", DType::kF32, {c_.mix_rows(), c_.stream_dim()}, TensorRole::kMixFunction,
          c_.stream_dim());
      Add(prefix + site + "base", DType::kF32, {c_.mix_rows()}, TensorRole::kMixBase);
      Add(prefix + site + "scale", DType::kF32, {3}, TensorRole::kMixScale);
    }
    group(TensorGroup::kAttention);
    Fp8(attn + "wq_a", c_.q_lora_rank, c_.hidden_size);
    Fp8(attn + "wq_b", c_.num_heads * c_.head_dim, c_.q_lora_rank);
    Fp8(attn + "wkv", c_.head_dim, c_.hidden_size);
    Fp8(attn + "wo_a", c_.o_groups * c_.o_lora_rank, c_.num_heads * c_.head_dim / c_.o_groups);
    Fp8(attn + "wo_b", c_.hidden_size, c_.o_groups * c_.o_lora_rank);
    group(TensorGroup::kRouter);
    Bf16(ffn + "gate", experts, c_.hidden_size);
    Add(ffn + "gate.bias", DType::kF32, {experts}, TensorRole::kGateBias);
    Add(ffn + "gate.bias_vl", DType::kF32, {experts}, TensorRole::kGateBias);
    group_ = draft ? TensorGroup::kMtpExperts : TensorGroup::kRoutedExperts;
    for (int64_t e = 0; e < experts; ++e) {
      const std::string expert = ffn + "experts." + std::to_string(e) + ".";
      Fp4(expert + "w1", c_.moe_intermediate_size, c_.hidden_size);
      Fp4(expert + "w3", c_.moe_intermediate_size, c_.hidden_size);
      Fp4(expert + "w2", c_.hidden_size, c_.moe_intermediate_size);
    }
    group(TensorGroup::kSharedExperts);
    Fp8(ffn + "shared_experts.w1", c_.shared_intermediate(), c_.hidden_size);
    Fp8(ffn + "shared_experts.w3", c_.shared_intermediate(), c_.hidden_size);
    Fp8(ffn + "shared_experts.w2", c_.hidden_size, c_.shared_intermediate());
  }

  const config::ModelConfig& c_;
  std::vector<ExpectedTensor> tensors_;
  TensorGroup group_ = TensorGroup::kAttention;
};

}  // namespace

std::string_view GroupName(TensorGroup group) {
  constexpr std::string_view kNames[kNumGroups] = {"routed experts",
                                                   "Engram tables",
                                                   "mtp routed experts",
                                                   "attention FP8 matrices",
                                                   "embed + head",
                                                   "shared experts",
                                                   "vision + aligner + image_*",
                                                   "mtp non-expert",
                                                   "Engram wkv + q/k weights",
                                                   "router weights + biases",
                                                   "mHC parameters",
                                                   "indexers",
                                                   "compressors",
                                                   "norms + sinks"};
  return kNames[static_cast<size_t>(group)];
}

std::vector<ExpectedTensor> ExpectedTensors(const config::ModelConfig& config) {
  Inventory inventory(config);
  inventory.AddGlobals();
  for (const config::LayerPlan& plan : config::MakeLayerSchedule(config)) inventory.AddLayer(plan);
  inventory.AddDrafts();
  inventory.AddVision();
  return inventory.Take();
}

int64_t BytesOf(const ExpectedTensor& tensor) {
  const int64_t bytes = TensorBytes(tensor.dtype, tensor.shape);
  SENKO_CHECK(bytes >= 0);
  return bytes;
}

int64_t ParametersOf(const ExpectedTensor& tensor) {
  if (tensor.dtype == DType::kF8E8M0) return 0;
  const int64_t elements = BytesOf(tensor) / static_cast<int64_t>(SizeOf(tensor.dtype));
  return tensor.role == TensorRole::kFp4Weight ? 2 * elements : elements;
}

std::vector<GroupTotal> GroupTotals(const std::vector<ExpectedTensor>& tensors) {
  std::vector<GroupTotal> totals;
  for (int g = 0; g < kNumGroups; ++g) totals.push_back({static_cast<TensorGroup>(g), 0, 0});
  for (const ExpectedTensor& tensor : tensors) {
    GroupTotal& total = totals[static_cast<size_t>(tensor.group)];
    ++total.tensors;
    total.bytes += BytesOf(tensor);
  }
  std::erase_if(totals, [](const GroupTotal& total) { return total.tensors == 0; });
  return totals;
}

}  // namespace senko::checkpoint
