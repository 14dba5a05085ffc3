#include "model/moe_layer.h"

#include <vector>

namespace senko::model {

void RunMoe(const PassContext& context, const LayerWeights& layer, const RowSet& rows) {
  const config::ModelConfig& config = context.model.config();
  const ops::OpTable& ops = context.model.options().ops;
  Workspace& ws = context.workspace;

  ops::RouterParams r;
  r.rows = rows.size();
  r.num_experts = config.num_experts;
  r.topk = config.experts_per_token;
  r.x = ws.x.data();
  r.gate = layer.gate;
  r.bias = layer.bias;
  r.bias_vl = layer.bias_vl;
  r.is_image = rows.is_image();
  r.temperature = static_cast<float>(config.gate_temperature);
  r.scaling = static_cast<float>(config.routed_scaling_factor);
  r.normalise = config.norm_topk_prob;
  r.scores = ws.scores.data();
  r.ids = ws.route_ids.data();
  r.weights = ws.route_weights.data();
  ops.router(r, context.pool);
  if (context.probe != nullptr) {
    const std::vector<int64_t> limits(static_cast<size_t>(r.rows), r.num_experts);
    context.probe->Ints(layer.plan.layer, "route_ids", rows.positions(), r.rows, r.topk, limits.data(), r.ids, nullptr);
    context.probe->Floats(layer.plan.layer, "route_weights", rows.positions(), r.rows, r.topk, r.weights);
  }

  const ops::DispatchLists lists{ws.expert_begin.data(), ws.pairs.data()};
  ops::MakeDispatchLists(r.ids, r.rows, r.topk, r.num_experts, lists);

  ops::ExpertsParams e;
  e.rows = rows.size();
  e.hidden = config.hidden_size;
  e.inter = config.moe_intermediate_size;
  e.shared_inter = config.shared_intermediate();
  e.num_experts = config.num_experts;
  e.topk = config.experts_per_token;
  e.x = ws.xq.data();
  e.experts = layer.experts.data();
  e.shared = layer.shared;
  e.route_weights = r.weights;
  e.dispatch = lists;
  e.swiglu_limit = static_cast<float>(config.swiglu_limit);
  e.round_bf16 = context.model.rounds_to_bf16();
  e.round_activations = context.model.rounds_activations();
  e.scratch = ws.experts.data();
  e.y = ws.y.data();
  ops.experts(e, context.pool);
}

}  // namespace senko::model
