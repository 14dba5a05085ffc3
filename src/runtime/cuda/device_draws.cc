#include "runtime/cuda/device_draws.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cuda/check.h"

namespace senko::runtime {

DeviceDraws::DeviceDraws(const model::Model& model, DevicePasses* passes, const StepBatch& batch,
                         const DeviceWorkspace& workspace, const DeviceDrawLimits& limits, DeviceArena& arena)
    : batch_(batch), ws_(workspace), passes_(passes), vocab_(model.config().vocab_size), limits_(limits) {
  table_stride_ = (vocab_ + 127) / 128 * 128;  // 256 bytes
  bits_stride_ = (vocab_ + 2047) / 2048 * 64;
  tables_ = arena.Take<uint16_t>(static_cast<size_t>(limits.num_tables * table_stride_));
  prompt_bits_ = arena.Take<uint32_t>(static_cast<size_t>(limits.num_tables * bits_stride_));
  const auto listed = static_cast<size_t>(limits.max_listed), draws = static_cast<size_t>(limits.max_draws);
  bias_ids_ = arena.Take<int32_t>(listed);
  bias_values_ = arena.Take<float>(listed);
  banned_ids_ = arena.Take<int32_t>(listed);
  tokens_ = arena.Take<int32_t>(draws);
  results_ = arena.Take<ops::SampleResultSm90>(draws);
  if (tokens_ == nullptr) return;
  SENKO_CUDA(cudaMemset(tokens_, 0, draws * sizeof(int32_t)));
  for (int i = 0; i < 2; ++i) {
    SENKO_CUDA(
        cudaHostAlloc(reinterpret_cast<void**>(&pinned_[i]), 3 * listed * sizeof(int32_t), cudaHostAllocDefault));
    SENKO_CUDA(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming));
  }
}

DeviceDraws::~DeviceDraws() {
  for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  for (int i = 0; i < 2; ++i) {
    if (copied_[i] != nullptr) cudaEventDestroy(copied_[i]);
    cudaFreeHost(pinned_[i]);
  }
}

std::vector<int64_t> DeviceDraws::Regimes() const {
  std::vector<int64_t> regimes;
  for (int64_t draws = 1; draws < limits_.max_draws; draws *= 2) regimes.push_back(draws);
  regimes.push_back(limits_.max_draws);
  return regimes;
}

void DeviceDraws::Launch(int64_t most_draws, cudaStream_t stream) const {
  const int64_t most_rows = std::min(most_draws, ws_.limits.max_drawn_rows);
  passes_->Head(batch_.num_drawn_rows(), most_rows, batch_.drawn_rows(), 0, stream);
  ops::SampleSm90Params s;
  s.num_jobs = batch_.num_draws();
  s.max_jobs = most_draws;
  s.jobs = batch_.draws();
  s.vocab = vocab_;
  s.logits = ws_.logits;
  s.bias_ids = bias_ids_;
  s.bias_values = bias_values_;
  s.banned_ids = banned_ids_;
  s.tokens = tokens_;
  s.results = results_;
  ops::SampleSm90(s, stream);
}

void DeviceDraws::Capture(cudaStream_t stream) {
  SENKO_CHECK(graphs_.empty());
  for (const int64_t draws : Regimes()) {
    SENKO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Launch(draws, stream);
    cudaGraph_t graph = nullptr;
    SENKO_CUDA(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    SENKO_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    nodes_ += static_cast<int64_t>(nodes);
    cudaGraphExec_t exec = nullptr;
    SENKO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    SENKO_CUDA(cudaGraphDestroy(graph));
    graphs_.push_back(exec);
    SENKO_CUDA(cudaGraphUpload(exec, stream));
  }
}

void DeviceDraws::Run(int64_t draws, bool eager, cudaStream_t stream) const {
  const std::vector<int64_t> regimes = Regimes();
  const auto found = std::lower_bound(regimes.begin(), regimes.end(), draws);
  SENKO_CHECK(found != regimes.end());
  if (eager) {
    Launch(*found, stream);
  } else {
    SENKO_CUDA(cudaGraphLaunch(graphs_[static_cast<size_t>(found - regimes.begin())], stream));
  }
}

void DeviceDraws::SendLists(std::span<const int32_t> bias_ids, std::span<const float> bias_values,
                            std::span<const int32_t> banned_ids, cudaStream_t stream) {
  SENKO_CHECK(bias_ids.size() == bias_values.size());
  if (bias_ids.empty() && banned_ids.empty()) return;
  const auto most = static_cast<size_t>(limits_.max_listed);
  SENKO_CHECK(bias_ids.size() <= most && banned_ids.size() <= most);
  SENKO_CUDA(cudaEventSynchronize(copied_[next_]));
  uint8_t* at = pinned_[next_];
  const auto send = [&](const auto& list, auto* to) {
    if (!list.empty()) {
      std::memcpy(at, list.data(), list.size_bytes());
      SENKO_CUDA(cudaMemcpyAsync(to, at, list.size_bytes(), cudaMemcpyHostToDevice, stream));
    }
    at += most * sizeof(int32_t);
  };
  send(bias_ids, bias_ids_);
  send(bias_values, bias_values_);
  send(banned_ids, banned_ids_);
  SENKO_CUDA(cudaEventRecord(copied_[next_], stream));
  next_ = 1 - next_;
}

}  // namespace senko::runtime
