// One function per operator and backend, so that a model can be run with any mixture: `--op-impl attention=reference`.
#pragma once

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
  void (*linear)(const LinearParams&, ThreadPool&);
  void (*round_activations)(const float*, float*, int64_t, int64_t, ThreadPool&);
  void (*rms_norm)(const RmsNormParams&, ThreadPool&);
  void (*mhc_mix)(const MhcMixParams&, ThreadPool&);
  void (*mhc_collapse)(const MhcCollapseParams&, ThreadPool&);
  void (*mhc_expand)(const MhcExpandParams&, ThreadPool&);
  void (*window_write)(const WindowWriteParams&, ThreadPool&);
  void (*compress)(const CompressParams&, ThreadPool&);
  void (*entry_write)(const EntryWriteParams&, ThreadPool&);
  void (*key_write)(const KeyWriteParams&, ThreadPool&);
  void (*attention)(const AttentionParams&, ThreadPool&);
  void (*index_query)(const IndexQueryParams&, ThreadPool&);
  void (*select)(const SelectParams&, ThreadPool&);
  void (*router)(const RouterParams&, ThreadPool&);
  void (*experts)(const ExpertsParams&, ThreadPool&);
  void (*output_proj)(const OutputProjParams&, ThreadPool&);
  void (*engram_gather)(const EngramGatherParams&, ThreadPool&);
  void (*engram_inject)(const EngramInjectParams&, ThreadPool&);
  void (*logits)(const LogitsParams&, uint8_t* finite, ThreadPool&);
};

OpTable CpuOps();
OpTable ReferenceOps();

// Replaces one operator of `table` by another backend's: op is a member's name, backend "cpu" or "reference".
// Errors: kInvalidArgument naming the unknown operator or backend and listing the known ones.
void ChooseOp(OpTable& table, std::string_view op, std::string_view backend);

}  // namespace senko::ops
