#include "ops/op_table.h"

#include <string>

#include "base/error.h"

namespace senko::ops {
namespace {

void LogitsReferenceFinite(const LogitsParams& p, uint8_t* finite, ThreadPool& pool) {
  LogitsReference(p, pool);
  if (finite == nullptr) return;
  for (int64_t r = 0; r < p.rows; ++r) {
    bool ok = true;
    for (int64_t v = 0; v < p.head.out; ++v) ok = ok && __builtin_isfinite(p.logits[r * p.head.out + v]);
    finite[r] = ok;
  }
}

}  // namespace

OpTable CpuOps() {
  return {LinearCpu,     RoundActivationsCpu, RmsNormCpu,      MhcMixCpu,     MhcCollapseCpu,
          MhcExpandCpu,  WindowWriteCpu,      CompressCpu,     EntryWriteCpu, KeyWriteCpu,
          AttentionCpu,  IndexQueryCpu,       SelectCpu,       RouterCpu,     ExpertsCpu,
          OutputProjCpu, EngramGatherCpu,     EngramInjectCpu, LogitsCpu};
}

OpTable ReferenceOps() {
  return {LinearReference,       RoundActivationsReference, RmsNormReference,     MhcMixReference,
          MhcCollapseReference,  MhcExpandReference,        WindowWriteReference, CompressReference,
          EntryWriteReference,   KeyWriteReference,         AttentionReference,   IndexQueryReference,
          SelectReference,       RouterReference,           ExpertsReference,     OutputProjReference,
          EngramGatherReference, EngramInjectReference,     LogitsReferenceFinite};
}

void ChooseOp(OpTable& table, std::string_view op, std::string_view backend) {
  OpTable from{};
  if (backend == "cpu") {
    from = CpuOps();
  } else if (backend == "reference") {
    from = ReferenceOps();
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                "--op-impl: unknown backend \"" + std::string(backend) + "\"; known: cpu, reference");
  }
  std::string known;
#define SENKO_CHOOSE(name)  \
  known += " " #name;       \
  if (op == #name) {        \
    table.name = from.name; \
    return;                 \
  }
  SENKO_CHOOSE(linear)
  SENKO_CHOOSE(round_activations)
  SENKO_CHOOSE(rms_norm)
  SENKO_CHOOSE(mhc_mix)
  SENKO_CHOOSE(mhc_collapse)
  SENKO_CHOOSE(mhc_expand)
  SENKO_CHOOSE(window_write)
  SENKO_CHOOSE(compress)
  SENKO_CHOOSE(entry_write)
  SENKO_CHOOSE(key_write)
  SENKO_CHOOSE(attention)
  SENKO_CHOOSE(index_query)
  SENKO_CHOOSE(select)
  SENKO_CHOOSE(router)
  SENKO_CHOOSE(experts)
  SENKO_CHOOSE(output_proj)
  SENKO_CHOOSE(engram_gather)
  SENKO_CHOOSE(engram_inject)
  SENKO_CHOOSE(logits)
#undef SENKO_CHOOSE
  if (op == "all") {
    table = from;
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "--op-impl: unknown operator \"" + std::string(op) + "\"; known: all" + known);
}

}  // namespace senko::ops
