// One backbone layer over a set of rows (model.md 3.2): the pieces the two passes are made of.
#pragma once

#include "model/model.h"

namespace senko::model {

// What of the layer runs and over which rows.
struct LayerRows {
  const RowSet& rows;       // query rows
  ops::RowBatch batch;      // their windows and staging
  uint8_t* staging;         // window rows of this layer
  bool kv_written = false;  // KV production and Engram injection already ran (the seam layer in the decoder pass)
  const RowSet& kv_rows;    // rows whose window rows are staged, for the commit
};

// Shows rows of [width] values to the probe, if there is one.
void ProbeFloats(const PassContext& context, const LayerWeights& layer, const char* point, const RowSet& rows,
                 int64_t width, float* data);

// workspace.x = RMSNorm(collapse(stream, pre)).
void Collapse(const PassContext& context, int64_t rows, const float* pre, const float* norm_weight);

// X, pre -> X, pre, in the workspace.
void RunLayer(const PassContext& context, std::span<const SequenceInput> sequences, const LayerWeights& layer,
              const LayerRows& rows);

// Engram injection, normed input, window rows, entries and index keys of the layer; no queries, no MoE.
void ProduceKv(const PassContext& context, std::span<const SequenceInput> sequences, const LayerWeights& layer,
               const RowSet& rows, uint8_t* staging);

// After the layer's attention: staged rows into the rings.
void CommitWindow(const PassContext& context, const LayerWeights& layer, const RowSet& kv_rows, uint8_t* staging);

}  // namespace senko::model
