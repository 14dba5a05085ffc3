#include "runtime/cuda/device_weights.h"

#include <array>
#include <cmath>
#include <string>

#include "runtime/cuda/weight_upload.h"

namespace senko::runtime {
namespace {

using ops::TiledWeight;
using ops::WeightFormat;
using ops::WeightView;

// Walks a model's weights and takes memory for each; with an upload also fills it. The same walk measures and loads.
class Walk {
 public:
  Walk(const model::Model& model, DeviceArena& arena, WeightUpload* upload, const ProgressSink& progress)
      : model_(model), config_(model.config()), arena_(arena), upload_(upload), progress_(progress) {}

  DeviceWeights Run() {
    const model::Weights& host = model_.weights();
    const int64_t pairs = config_.rope_dim / 2;
    DeviceWeights w;
    const auto embed_bytes = static_cast<size_t>(config_.vocab_size * config_.hidden_size * 2);
    auto* embed = arena_.Take<uint8_t>(embed_bytes);
    if (upload_ != nullptr) upload_->Bytes(host.embed, embed_bytes, embed);
    w.embed = embed;
    w.head = Tiled("head.weight", std::array{host.head});
    w.norm = Vector(host.norm, config_.hidden_size, 1);
    w.inv_freq_plain = Vector(model_.inv_freq(false).data(), pairs, 0);
    w.inv_freq_compressed = Vector(model_.inv_freq(true).data(), pairs, 0);
    for (const model::LayerWeights& layer : host.layers) {
      w.layers.push_back(Layer(layer));
      if (progress_) {
        progress_({"weights", static_cast<uint64_t>(layer.plan.layer + 1), static_cast<uint64_t>(config_.num_layers),
                   "layers"});
      }
    }
    return w;
  }

 private:
  template <typename Views>
  TiledWeight Tiled(const std::string& name, const Views& pieces) {
    TiledWeight w{pieces[0].format, 0, pieces[0].in, nullptr, nullptr};
    for (const WeightView& piece : pieces) w.out += piece.out;
    auto* tiles = arena_.Take<uint8_t>(ops::TileBytes(w.format, w.out, w.in));
    auto* scales = arena_.Take<uint8_t>(ops::TileScaleBytes(w.format, w.out, w.in));
    w.tiles = tiles;
    w.scales = scales;
    if (upload_ != nullptr) upload_->Tiles(name, pieces, tiles, scales);
    return w;
  }

  const float* Vector(const float* host, int64_t count, float otherwise) {
    auto* to = arena_.Take<float>(static_cast<size_t>(count));
    if (upload_ != nullptr) upload_->Floats(host, static_cast<size_t>(count), otherwise, to);
    return to;
  }

  DeviceMhcSite Site(const std::string& name, const model::MhcWeights& host) {
    const int64_t in = config_.stream_dim(), outputs = config_.mix_rows(), out = 3 * outputs;
    DeviceMhcSite site;
    auto* tiles = arena_.Take<uint8_t>(ops::TileBytes(WeightFormat::kBf16, out, in));
    site.fn = {WeightFormat::kBf16, out, in, tiles, nullptr};
    if (upload_ != nullptr) upload_->SplitTiles(name + "_fn", host.fn, site.fn, tiles);
    site.base = Vector(host.base, outputs, 0);
    site.scale = Vector(host.scale, 3, 0.1f);
    return site;
  }

  // Outputs [begin, begin + count) of a weight in tiles; multiples of 64.
  static TiledWeight Part(const TiledWeight& w, int64_t begin, int64_t count) {
    TiledWeight part = w;
    part.out = count;
    if (w.tiles != nullptr) part.tiles = w.tiles + ops::TileBytes(w.format, begin, w.in);
    if (w.scales != nullptr) part.scales = w.scales + ops::TileScaleBytes(w.format, begin, w.in);
    return part;
  }

  ops::ExpertTiles Experts(const std::string& name, const std::vector<ops::ExpertWeights>& experts) {
    ops::ExpertTiles tiles;
    if (experts.empty()) return tiles;
    tiles.format = experts.front().w1.format;
    tiles.inter = experts.front().w1.out;
    tiles.hidden = experts.front().w1.in;
    // w1's and w3's rows in turn, 64 of each.
    std::vector<WeightView> up, down;
    for (const ops::ExpertWeights& e : experts) {
      for (int64_t row = 0; row < tiles.inter; row += 64) {
        up.push_back(Rows(e.w1, row));
        up.push_back(Rows(e.w3, row));
      }
      down.push_back(e.w2);
    }
    const TiledWeight a = Tiled(name + ".w1/w3", up), b = Tiled(name + ".w2", down);
    tiles.up = a.tiles, tiles.up_scales = a.scales;
    tiles.down = b.tiles, tiles.down_scales = b.scales;
    return tiles;
  }
  static WeightView Rows(const WeightView& w, int64_t begin) {
    if (w.data != nullptr) return w.Rows(begin, 64);
    WeightView rows = w;
    rows.out = 64;
    return rows;
  }

  DeviceLayer Layer(const model::LayerWeights& host) {
    const std::string name = "layers." + std::to_string(host.plan.layer) + ".", attn = name + "attn.";
    DeviceLayer w;
    w.plan = host.plan;
    w.attn_site = Site(name + "hc_attn", host.attn_site);
    w.ffn_site = Site(name + "hc_ffn", host.ffn_site);
    w.attn_norm = Vector(host.attn_norm, config_.hidden_size, 1);
    w.ffn_norm = Vector(host.ffn_norm, config_.hidden_size, 1);
    w.q_norm = Vector(host.q_norm, config_.q_lora_rank, 1);
    w.kv_norm = Vector(host.kv_norm, config_.head_dim, 1);
    w.sink = Vector(host.sink, config_.num_heads, 0);
    w.latents = Tiled(attn + "wq_a/wkv", std::array{host.wq_a, host.wkv});
    w.wq_a = Part(w.latents, 0, config_.q_lora_rank);
    w.wkv = Part(w.latents, config_.q_lora_rank, config_.head_dim);
    w.wq_b = Tiled(attn + "wq_b", std::array{host.wq_b});
    w.wo_a = Tiled(attn + "wo_a", std::array{host.wo_a});
    w.wo_b = Tiled(attn + "wo_b", std::array{host.wo_b});
    if (host.compressor) {
      DeviceCompressor c;
      std::vector<WeightView> kv{host.compressor->wkv};
      if (host.plan.ratio == 2) kv.push_back(host.compressor->wgate);
      c.wkv = Tiled(attn + "compressor.wkv/wgate", kv);
      c.norm = Vector(host.compressor->norm, config_.head_dim, 1);
      c.wk = Tiled(attn + "indexer.wk", std::array{host.compressor->wk});
      c.k_norm = Vector(host.compressor->k_norm, config_.index_dim, 1);
      w.compressor = c;
    }
    if (host.indexer) {
      w.indexer = DeviceIndexer{Tiled(attn + "indexer.wq_b", std::array{host.indexer->wq_b}),
                                Tiled(attn + "indexer.weights_proj", std::array{host.indexer->weights_proj})};
    }
    if (host.engram) {
      w.engram = DeviceEngramWeights{Tiled(name + "engram.wkv", std::array{host.engram->wkv}),
                                     Vector(host.engram->q_weight, config_.stream_dim(), 1),
                                     Vector(host.engram->k_weight, config_.stream_dim(), 1)};
    }
    w.gate = Tiled(name + "ffn.gate.weight", std::array{host.gate});
    w.bias = Vector(host.bias, config_.num_experts, 0);
    w.bias_vl = Vector(host.bias_vl, config_.num_experts, 0);
    w.experts = Experts(name + "ffn.experts", host.experts);
    if (host.shared.w1.out > 0) w.shared = Experts(name + "ffn.shared_experts", {host.shared});
    return w;
  }

  const model::Model& model_;
  const config::ModelConfig& config_;
  DeviceArena& arena_;
  WeightUpload* upload_;
  const ProgressSink& progress_;
};

}  // namespace

size_t DeviceWeightBytes(const model::Model& model) {
  DeviceArena measured;
  const ProgressSink none;
  Walk(model, measured, nullptr, none).Run();
  return measured.used();
}

DeviceWeights LoadDeviceWeights(const model::Model& model, DeviceArena& arena, ThreadPool& pool,
                                const ProgressSink& progress, StartReport* report) {
  WeightUpload upload(pool);
  DeviceWeights weights = Walk(model, arena, &upload, progress).Run();
  upload.Finish();
  report->reading_seconds = upload.reading_seconds();
  report->waiting_seconds = upload.waiting_seconds();
  return weights;
}

}  // namespace senko::runtime
