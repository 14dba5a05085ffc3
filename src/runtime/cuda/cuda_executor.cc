#include "runtime/cuda/cuda_executor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cuda/check.h"
#include "senko/senko.h"

namespace senko::runtime {
namespace {

// Steps of up to so many rows that are all kept (pure decode) are one graph.
constexpr int64_t kWholeRows = 512;

// Biases and bans of a step's draws: a request may bias every token, and another bar every one.
constexpr int64_t kListed = int64_t{1} << 16;

// One for each row, and the choices of a request that begin in this step.
int64_t MostDraws(const ExecutorLimits& limits) { return limits.max_drawn_rows + kMaxChoices; }

int64_t Positions(const model::Model& model, const ExecutorLimits& limits) {
  return limits.max_positions > 0 ? limits.max_positions : model.config().max_positions;
}

StepBatchLimits BatchLimits(const model::Model& model, const ExecutorLimits& limits) {
  const int64_t block = model.page_layout().block_size;
  return {limits.max_rows, limits.max_sequences,
          limits.max_sequences * ((Positions(model, limits) + block - 1) / block),
          std::min(limits.max_drawn_rows, limits.max_rows), MostDraws(limits)};
}

DeviceDrawLimits DrawLimits(const model::Model& model, const ExecutorLimits& limits) {
  return {MostDraws(limits), std::max(kListed, 2 * model.config().vocab_size), limits.max_sequences};
}

DeviceWorkspaceLimits WorkspaceLimits(const model::Model& model, const ExecutorLimits& limits) {
  return {limits.max_rows, Positions(model, limits), std::min(limits.max_drawn_rows, limits.max_rows)};
}

model::WorkspaceLimits StepLimits(const ExecutorLimits& limits) {
  model::WorkspaceLimits step;
  step.max_rows = limits.max_rows;
  step.max_sequences = limits.max_sequences;
  return step;
}

}  // namespace

size_t CudaExecutor::DeviceBytes(const model::Model& model, const ExecutorLimits& limits) {
  DeviceArena measured;
  const StepBatch batch(model, BatchLimits(model, limits), nullptr, nullptr, measured);
  const auto workspace = MakeDeviceWorkspace(model, WorkspaceLimits(model, limits), measured);
  const DeviceDraws draws(model, nullptr, batch, *workspace, DrawLimits(model, limits), measured);
  return measured.used();
}

CudaExecutor::CudaExecutor(const model::Model& model, const DeviceWeights& weights, const DeviceEngram& engram,
                           cache::PagePool& pages, const ExecutorLimits& limits, bool graphs, StartReport* report)
    : Executor(model, pages, StepLimits(limits)),
      limits_(limits),
      arena_(DeviceBytes(model, limits)),
      batch_(model, BatchLimits(model, limits), weights.inv_freq_plain, weights.inv_freq_compressed, arena_),
      workspace_begin_(arena_.used()),
      workspace_(MakeDeviceWorkspace(model, WorkspaceLimits(model, limits), arena_)),
      workspace_end_(arena_.used()),
      passes_(MakeDevicePasses(model, weights, engram, batch_, *workspace_, pages.slab())),
      draws_(model, passes_.get(), batch_, *workspace_, DrawLimits(model, limits), arena_),
      graphs_(*passes_, limits.max_rows),
      has_graphs_(graphs),
      eager_(!graphs) {
  SENKO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  batch_.set_drawn_tokens(draws_.tokens());
  // A step without rows in every regime: kernels are loaded here, and not within a capture.
  const StartPart kernels;
  batch_.Send({}, {}, {}, stream_);
  for (const int64_t rows : PassGraphs::Regimes(limits.max_rows)) {
    passes_->Encoder({rows, rows, false}, stream_);
    passes_->Decoder({rows, rows, false}, stream_);
  }
  for (const int64_t draws : draws_.Regimes()) draws_.Launch(draws, stream_);
  Wait();
  report->kernels = kernels.End();
  const StartPart capture;
  if (graphs) {
    graphs_.Capture(kWholeRows, stream_);
    draws_.Capture(stream_);
  }
  Wait();
  report->capture = capture.End();
  report->graphs = graphs_.graphs() + draws_.graphs();
  report->launches = graphs_.nodes() + draws_.nodes();
}

CudaExecutor::~CudaExecutor() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CudaExecutor::Wait() { SENKO_CUDA(cudaStreamSynchronize(stream_)); }

bool CudaExecutor::UseGraphs(bool graphs) {
  eager_ = !(graphs && has_graphs_);
  return !eager_;
}

int64_t CudaExecutor::Run(std::span<const model::SequenceInput> sequences) {
  LaunchPasses(sequences, {}, nullptr);
  return batch_.counts().decoder_rows;
}

void CudaExecutor::LaunchPasses(std::span<const model::SequenceInput> sequences, const StepDraws& draws,
                                cudaEvent_t begun) {
  draws_.SendLists(draws.bias_ids, draws.bias_values, draws.banned_ids, stream_);
  batch_.Send(sequences, draws.rows, draws.jobs, stream_);
  if (begun != nullptr) SENKO_CUDA(cudaEventRecord(begun, stream_));
  const StepCounts& counts = batch_.counts();
  const bool eager = eager_ || probe_.has_value();
  if (counts.encoder_rows > 0) graphs_.Run(counts.encoder_rows, counts.decoder_rows, eager, stream_);
}

void CudaExecutor::LaunchDraws() {
  if (batch_.counts().draws > 0) draws_.Run(batch_.counts().draws, eager_, stream_);
}

StepProfile CudaExecutor::ProfileLastStep() {
  constexpr int kRepeats = 5;
  const int64_t encoder_rows = batch_.counts().encoder_rows, decoder_rows = batch_.counts().decoder_rows;
  StepProfile profile;
  const PassBounds bounds = graphs_.Bounds(encoder_rows, decoder_rows);
  StepClock clock;
  SENKO_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  passes_->set_observer(&clock);
  passes_->Encoder(bounds, stream_);
  passes_->Decoder(bounds, stream_);
  passes_->set_observer(nullptr);
  clock.End(stream_);
  cudaGraph_t graph = nullptr;
  SENKO_CUDA(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t exec = nullptr;
  SENKO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < kRepeats; ++i) SENKO_CUDA(cudaGraphLaunch(exec, stream_));
  Wait();
  clock.Collect(&profile);
  SENKO_CUDA(cudaGraphExecDestroy(exec));
  SENKO_CUDA(cudaGraphDestroy(graph));

  cudaEvent_t begin = nullptr, end = nullptr;
  SENKO_CUDA(cudaEventCreate(&begin));
  SENKO_CUDA(cudaEventCreate(&end));
  profile.step_seconds = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    SENKO_CUDA(cudaEventRecord(begin, stream_));
    graphs_.Run(encoder_rows, decoder_rows, eager_, stream_);
    SENKO_CUDA(cudaEventRecord(end, stream_));
    Wait();
    float ms = 0;
    SENKO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    profile.step_seconds = std::min(profile.step_seconds, ms * 1e-3);
  }
  SENKO_CUDA(cudaEventDestroy(begin));
  SENKO_CUDA(cudaEventDestroy(end));
  return profile;
}

void CudaExecutor::Logits(int64_t first, int64_t count, float* logits, uint8_t* finite) {
  SENKO_CHECK(first >= 0 && first + count <= batch_.counts().decoder_rows);
  const int64_t vocab = model().config().vocab_size;
  for (int64_t done = 0; done < count; done += workspace_->limits.max_drawn_rows) {
    const int64_t rows = std::min(workspace_->limits.max_drawn_rows, count - done);
    passes_->Head(batch_.identity() + rows, rows, nullptr, first + done, stream_);
    SENKO_CUDA(cudaMemcpyAsync(logits + done * vocab, workspace_->logits,
                               static_cast<size_t>(rows * vocab) * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  }
  Wait();
  if (finite == nullptr) return;
  for (int64_t r = 0; r < count; ++r) {
    finite[r] = std::all_of(logits + r * vocab, logits + (r + 1) * vocab, [](float v) { return std::isfinite(v); });
  }
}

void CudaExecutor::GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite) {
  const auto vocab = static_cast<size_t>(model().config().vocab_size);
  for (size_t i = 0; i < rows.size();) {  // runs of neighbours
    size_t end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    Logits(rows[i], static_cast<int64_t>(end - i), logits + i * vocab, finite == nullptr ? nullptr : finite + i);
    i = end;
  }
}

void CudaExecutor::set_probe(model::Probe* probe) {
  probe_.reset();
  if (probe != nullptr) probe_.emplace(*probe);
  passes_->set_probe(probe != nullptr ? &*probe_ : nullptr);
}

void CudaExecutor::PoisonWorkspace() {
  SENKO_CUDA(cudaMemsetAsync(arena_.data() + workspace_begin_, 0xFF, workspace_end_ - workspace_begin_, stream_));
}

void CudaExecutor::Copy(std::span<const BlockCopy> copies, size_t bytes) {
  for (const BlockCopy& copy : copies) {
    SENKO_CUDA(cudaMemcpyAsync(copy.to, copy.from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
}

}  // namespace senko::runtime
