// Looking into a running model: records, or replaces, what flows between operators (`senko logits --dump/--inject`).
#pragma once

#include <cstdint>
#include <string_view>

namespace senko::model {

// Called on the engine's thread between operators. Rows are identified by position; a call may change `data`. The last
// KV source shows its kept rows' "attn_in" twice, when KV is produced and again in the decoder pass: change both alike.
class Probe {
 public:
  virtual ~Probe() = default;
  // Whether the rows of a point are to be shown: where bringing them costs time, those that are not are left where they
  // are. `last`: the largest of their positions.
  virtual bool Wants(int64_t layer, std::string_view point, int64_t last) const = 0;
  // point: "stream_in", "pre_in", "attn_in", "attn_out", "stream_mid" and "pre_mid" (between the sublayers), "ffn_in",
  // "ffn_out", "route_weights". Within attention the outputs of linears, "kv", "qa", "q", "index_q", "index_w" and, at
  // KV sources, "c", "z" (ratio 2) and "key"; "qr" (normed, rounded as activations), "o" and "latent". Rows of "latent"
  // and "key" are entries, `positions` their indices.
  virtual void Floats(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
                      float* data) = 0;
  // point: "select", "candidates" (counts[rows] valid leading values, ascending) or "route_ids" (counts null: all
  // valid). Values of row r are distinct and in [0, limits[r]); a probe that changes them keeps to that.
  virtual void Ints(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
                    const int64_t* limits, int32_t* data, int32_t* counts) = 0;
};

}  // namespace senko::model
