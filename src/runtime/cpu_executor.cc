#include "runtime/cpu_executor.h"

#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace senko::runtime {

CpuExecutor::CpuExecutor(const model::Model& model, cache::PagePool& pages, ThreadPool& pool,
                         const model::WorkspaceLimits& limits)
    : Executor(model, pages, limits),
      workspace_(model.config(), limits),
      context_{model, workspace_, pool, pages.slab(), nullptr} {}

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

void CpuExecutor::Copy(std::span<const BlockCopy> copies, size_t bytes) {
  context_.pool.ParallelFor(std::ssize(copies), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const BlockCopy& copy = copies[static_cast<size_t>(i)];
      std::memcpy(copy.to, copy.from, bytes);
    }
  });
}

StepProfile CpuExecutor::ProfileLastStep() {
  throw Error(ErrorCode::kUnsupported, "a step is clocked on a GPU only; `senko bench decode` clocks the CPU's");
}

std::span<const int64_t> CpuExecutor::kept_positions() const {
  return {workspace_.decoder.positions(), static_cast<size_t>(workspace_.decoder.size())};
}

}  // namespace senko::runtime
