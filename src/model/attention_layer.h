// The attention half of a layer (model.md 3.4 to 3.6): KV production, indexing, attention, output projection.
#pragma once

#include "model/layer.h"

namespace senko::model {

// workspace.xq = the activation-rounded workspace.x, in front of every FP8/FP4 linear that reads it.
void RoundInput(const PassContext& context, int64_t rows);

// The layer's rings and staging buffer.
ops::WindowView LayerWindow(const PassContext& context, const LayerWeights& layer, uint8_t* staging);

// Window rows into `staging`; on a KV source also entries, index keys and the pending pair. Reads workspace.x, .xq.
void WriteLayerKv(const PassContext& context, const LayerWeights& layer, const RowSet& rows, uint8_t* staging);

// workspace.x, .xq -> workspace.y.
void RunAttention(const PassContext& context, const LayerWeights& layer, const LayerRows& rows);

}  // namespace senko::model
