#include "runtime/cpu_executor.h"

#include <cstring>

#include "base/check.h"

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

void CpuExecutor::GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite) {
  const size_t hidden = static_cast<size_t>(context_.model.config().hidden_size);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from = static_cast<size_t>(rows[i]);
    SENKO_CHECK(from >= i && from < static_cast<size_t>(workspace_.decoder.size()) &&
                (i == 0 || rows[i - 1] < rows[i]));
    if (from != i)
      std::memcpy(workspace_.x.data() + i * hidden, workspace_.x.data() + from * hidden, hidden * sizeof(float));
  }
  model::ComputeLogits(context_, 0, static_cast<int64_t>(rows.size()), logits, finite);
}

std::span<const int64_t> CpuExecutor::kept_positions() const {
  return {workspace_.decoder.positions(), static_cast<size_t>(workspace_.decoder.size())};
}

}  // namespace senko::runtime
