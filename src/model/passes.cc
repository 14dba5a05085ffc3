#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/layer.h"
#include "model/model.h"
#include "numerics/bf16.h"

namespace senko::model {
namespace {

// X = the token's embedding in every stream; pre = (1, 0, ..., 0).
void Embed(const PassContext& context) {
  const config::ModelConfig& config = context.model.config();
  const uint8_t* embed = context.model.weights().embed;
  Workspace& ws = context.workspace;
  const int64_t d = config.hidden_size, hc = config.hc_mult;
  for (int64_t r = 0; r < ws.encoder.size(); ++r) {
    const int64_t token = ws.encoder.tokens()[r];
    SENKO_CHECK(token >= 0 && token < config.vocab_size);
    const uint8_t* row = embed + token * d * 2;
    float* x = ws.stream.data() + r * hc * d;
    for (int64_t i = 0; i < d; ++i) {
      uint16_t code;
      std::memcpy(&code, row + 2 * i, sizeof(code));
      x[i] = numerics::Bf16ToFloat(code);
    }
    for (int64_t s = 1; s < hc; ++s) std::memcpy(x + s * d, x, static_cast<size_t>(d) * sizeof(float));
    float* pre = ws.pre.data() + r * hc;
    std::fill(pre, pre + hc, 0.0f);
    pre[0] = 1.0f;
  }
}

// Token ids alone say which table rows the step reads, so those of every Engram layer are asked for before the first
// layer runs.
void AdviseEngram(const PassContext& context, std::span<const SequenceInput> sequences) {
  const engram::Hasher* hasher = context.model.hasher();
  if (hasher == nullptr) return;
  Workspace& ws = context.workspace;
  const int64_t slots = hasher->slots();
  for (int64_t layer = 0; layer < hasher->num_layers(); ++layer) {
    for (int64_t r = 0; r < ws.encoder.size(); ++r) {
      const SequenceInput& s = sequences[static_cast<size_t>(ws.encoder.sequences()[r])];
      hasher->Rows(layer, s.tokens, s.tokens_begin, ws.encoder.positions()[r], ws.engram_rows.data() + r * slots);
    }
    context.model.engram_tables()->WillNeed(layer,
                                            {ws.engram_rows.data(), static_cast<size_t>(ws.encoder.size() * slots)});
  }
}

// Moves the kept rows to the front of the per-row state that crosses the seam.
void Compact(const PassContext& context) {
  const config::ModelConfig& config = context.model.config();
  Workspace& ws = context.workspace;
  const size_t stream = static_cast<size_t>(config.stream_dim()), hc = static_cast<size_t>(config.hc_mult);
  for (int64_t r = 0; r < ws.decoder.size(); ++r) {
    const int64_t from = ws.decoder.source_rows()[r];
    if (from == r) continue;
    const size_t to = static_cast<size_t>(r), source = static_cast<size_t>(from);
    std::memcpy(ws.stream.data() + to * stream, ws.stream.data() + source * stream, stream * sizeof(float));
    std::memcpy(ws.pre.data() + to * hc, ws.pre.data() + source * hc, hc * sizeof(float));
  }
}

}  // namespace

void EncoderPass(const PassContext& context, std::span<const SequenceInput> sequences) {
  const Model& model = context.model;
  const config::ModelConfig& config = model.config();
  Workspace& ws = context.workspace;
  ws.encoder.BuildEncoder(sequences, config.window, config.image_token_id);
  ws.encoder.BuildRope(model.inv_freq(false), model.inv_freq(true));
  AdviseEngram(context, sequences);
  Embed(context);
  const int64_t seam = config.last_kv_source();
  if (seam < 0) return;
  ws.latents1.Build(sequences, ws.encoder, model.inv_freq(true));
  ws.latents2.Build(sequences, ws.encoder, model.inv_freq(true));
  for (int64_t l = 0; l < seam; ++l) {
    const LayerRows rows{ws.encoder, ws.encoder.batch(), ws.staging.data(), false, ws.encoder};
    RunLayer(context, sequences, model.weights().layers[static_cast<size_t>(l)], rows);
  }
  ProduceKv(context, sequences, model.weights().layers[static_cast<size_t>(seam)], ws.encoder, ws.seam_staging.data());
}

void DecoderPass(const PassContext& context, std::span<const SequenceInput> sequences) {
  const Model& model = context.model;
  const config::ModelConfig& config = model.config();
  Workspace& ws = context.workspace;
  ws.decoder.BuildDecoder(sequences, config.window, config.image_token_id);
  ws.decoder.BuildRope(model.inv_freq(false), model.inv_freq(true));
  Compact(context);
  const int64_t seam = config.last_kv_source();
  if (seam >= 0) {
    const LayerRows rows{ws.decoder, ws.decoder.SeamBatch(ws.encoder), ws.seam_staging.data(), true, ws.encoder};
    RunLayer(context, sequences, model.weights().layers[static_cast<size_t>(seam)], rows);
  }
  if (ws.decoder.size() == 0) return;
  for (int64_t l = seam + 1; l < config.num_layers; ++l) {
    const LayerRows rows{ws.decoder, ws.decoder.batch(), ws.staging.data(), false, ws.decoder};
    RunLayer(context, sequences, model.weights().layers[static_cast<size_t>(l)], rows);
  }
  Collapse(context, ws.decoder.size(), ws.pre.data(), model.weights().norm);
}

void ComputeLogits(const PassContext& context, int64_t first, int64_t count, float* logits, uint8_t* finite) {
  SENKO_CHECK(first >= 0 && first + count <= context.workspace.decoder.size());
  if (count == 0) return;
  ops::LogitsParams p;
  p.rows = count;
  p.x = context.workspace.x.data() + first * context.model.config().hidden_size;
  p.head = context.model.weights().head;
  p.logits = logits;
  context.model.options().ops.logits(p, finite, context.pool);
}

}  // namespace senko::model
