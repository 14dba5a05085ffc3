// The MoE half of a layer (model.md 3.8).
#pragma once

#include "model/layer.h"

namespace senko::model {

// workspace.x, .xq -> workspace.y.
void RunMoe(const PassContext& context, const LayerWeights& layer, const RowSet& rows);

}  // namespace senko::model
