#include "runtime/cuda/step_clock.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"

namespace senko::runtime {

StepClock::~StepClock() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void StepClock::Mark(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  SENKO_CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  SENKO_CHECK(status == cudaStreamCaptureStatusActive);
  size_t nodes = 0;
  SENKO_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  nodes_.push_back(nodes);
  cudaEvent_t event = nullptr;
  SENKO_CUDA(cudaEventCreate(&event));
  events_.push_back(event);
  SENKO_CUDA(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
}

void StepClock::Begin(std::string_view op, int64_t, cudaStream_t stream) {
  Mark(stream);
  names_.emplace_back(op);
}

void StepClock::End(cudaStream_t stream) { Mark(stream); }

void StepClock::Collect(StepProfile* profile) const {
  SENKO_CHECK(events_.size() == names_.size() + 1);
  for (size_t i = 0; i < names_.size(); ++i) {
    auto op =
        std::find_if(profile->ops.begin(), profile->ops.end(), [&](const OpTime& o) { return o.op == names_[i]; });
    if (op == profile->ops.end()) op = profile->ops.insert(op, OpTime{names_[i], 0, 0, 0});
    float ms = 0;
    SENKO_CUDA(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]));
    const auto launches = static_cast<int64_t>(nodes_[i + 1] - nodes_[i]) - 1;  // the event itself is a node
    ++op->calls;
    op->launches += launches;
    op->seconds += ms * 1e-3;
    profile->launches += launches;
    profile->serial_seconds += ms * 1e-3;
  }
}

}  // namespace senko::runtime
