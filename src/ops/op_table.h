// One function per operator and backend, so that a model can be run with any mixture: `--op-impl attention=reference`.
#pragma once

#include <functional>
#include <string_view>

#include "ops/attention/attention.h"
#include "ops/engram/engram.h"
#include "ops/experts/experts.h"
#include "ops/index_score/index_score.h"
#include "ops/kv_write/kv_write.h"
#include "ops/linear/linear.h"
#include "ops/logits/logits.h"
#include "ops/mhc/mhc.h"
#include "ops/norm/norm.h"
#include "ops/output_proj/output_proj.h"
#include "ops/router/router.h"
#include "ops/select/select.h"

namespace senko::ops {

struct OpTable {
  std::function<void(const LinearParams&, ThreadPool&)> linear;
  std::function<void(const float*, float*, int64_t, int64_t, ThreadPool&)> round_activations;
  std::function<void(const RmsNormParams&, ThreadPool&)> rms_norm;
  std::function<void(const MhcMixParams&, ThreadPool&)> mhc_mix;
  std::function<void(const MhcCollapseParams&, ThreadPool&)> mhc_collapse;
  std::function<void(const MhcExpandParams&, ThreadPool&)> mhc_expand;
  std::function<void(const WindowWriteParams&, ThreadPool&)> window_write;
  std::function<void(const CompressParams&, ThreadPool&)> compress;
  std::function<void(const EntryWriteParams&, ThreadPool&)> entry_write;
  std::function<void(const KeyWriteParams&, ThreadPool&)> key_write;
  std::function<void(const AttentionParams&, ThreadPool&)> attention;
  std::function<void(const IndexQueryParams&, ThreadPool&)> index_query;
  std::function<void(const SelectParams&, ThreadPool&)> select;
  std::function<void(const RouterParams&, ThreadPool&)> router;
  std::function<void(const ExpertsParams&, ThreadPool&)> experts;
  std::function<void(const OutputProjParams&, ThreadPool&)> output_proj;
  std::function<void(const EngramGatherParams&, ThreadPool&)> engram_gather;
  std::function<void(const EngramInjectParams&, ThreadPool&)> engram_inject;
  std::function<void(const LogitsParams&, uint8_t* finite, ThreadPool&)> logits;
};

OpTable CpuOps();
OpTable ReferenceOps();

// Replaces one operator of `table` by another backend's: op is a member's name, backend "cpu" or "reference".
// Errors: kInvalidArgument naming the unknown operator or backend and listing the known ones.
void ChooseOp(OpTable& table, std::string_view op, std::string_view backend);

}  // namespace senko::ops
