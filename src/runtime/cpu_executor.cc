#include "runtime/cpu_executor.h"

namespace senko::runtime {

CpuExecutor::CpuExecutor(const model::Model& model, cache::PagePool& pages, ThreadPool& pool,
                         const model::WorkspaceLimits& limits)
    : workspace_(model.config(), limits), pages_(pages), context_{model, workspace_, pool, pages.slab(), nullptr} {}

int64_t CpuExecutor::Run(std::span<const model::SequenceInput> sequences) {
  model::EncoderPass(context_, sequences);
  model::DecoderPass(context_, sequences);
  return workspace_.decoder.size();
}

void CpuExecutor::Logits(int64_t first, int64_t count, float* logits, uint8_t* finite) {
  model::ComputeLogits(context_, first, count, logits, finite);
}

std::span<const int64_t> CpuExecutor::kept_positions() const {
  return {workspace_.decoder.positions(), static_cast<size_t>(workspace_.decoder.size())};
}

}  // namespace senko::runtime
