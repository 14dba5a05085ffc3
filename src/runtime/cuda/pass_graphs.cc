#include "runtime/cuda/pass_graphs.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"

namespace senko::runtime {

// Where kernels change (linear_sm90.cc, attention_sm90.h, ExpertBlock), and no step of more than two in between, so
// that blocks of threads which find nothing to do stay few.
std::vector<int64_t> PassGraphs::Regimes(int64_t max_rows) {
  std::vector<int64_t> regimes;
  for (int64_t rows : {1, 2, 4, 8, 12, 16, 32, 64}) {
    if (rows < max_rows) regimes.push_back(rows);
  }
  for (int64_t rows = 128; rows < max_rows; rows *= 2) regimes.push_back(rows);
  regimes.push_back(max_rows);
  return regimes;
}

PassGraphs::PassGraphs(DevicePasses& passes, int64_t max_rows) : passes_(passes), regimes_(Regimes(max_rows)) {}

PassGraphs::~PassGraphs() {
  for (const auto* graphs : {&encoder_, &decoder_, &whole_}) {
    for (cudaGraphExec_t graph : *graphs) cudaGraphExecDestroy(graph);
  }
  if (no_rows_ != nullptr) cudaGraphExecDestroy(no_rows_);
}

template <typename Launch>
cudaGraphExec_t PassGraphs::Record(const Launch& launch, cudaStream_t stream) {
  SENKO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch();
  cudaGraph_t graph = nullptr;
  SENKO_CUDA(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  SENKO_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  nodes_ += static_cast<int64_t>(nodes);
  ++graphs_;
  cudaGraphExec_t exec = nullptr;
  SENKO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  SENKO_CUDA(cudaGraphDestroy(graph));
  SENKO_CUDA(cudaGraphUpload(exec, stream));
  return exec;
}

void PassGraphs::Capture(int64_t whole_rows, cudaStream_t stream) {
  SENKO_CHECK(encoder_.empty());
  for (const int64_t rows : regimes_) {
    encoder_.push_back(Record([&] { passes_.Encoder({rows, rows, false}, stream); }, stream));
    decoder_.push_back(Record([&] { passes_.Decoder({rows, rows, false}, stream); }, stream));
    if (rows > whole_rows && !whole_.empty()) continue;
    whole_.push_back(Record(
        [&] {
          passes_.Encoder({rows, rows, true}, stream);
          passes_.Decoder({rows, rows, true}, stream);
        },
        stream));
  }
  no_rows_ = Record([&] { passes_.Decoder({regimes_.back(), 0, false}, stream); }, stream);
}

int64_t PassGraphs::Regime(int64_t rows) const {
  const auto found = std::lower_bound(regimes_.begin(), regimes_.end(), rows);
  SENKO_CHECK(found != regimes_.end());
  return found - regimes_.begin();
}

PassBounds PassGraphs::Bounds(int64_t encoder_rows, int64_t decoder_rows) const {
  PassBounds bounds;
  bounds.encoder_rows = regimes_[static_cast<size_t>(Regime(encoder_rows))];
  if (decoder_rows > 0) bounds.decoder_rows = regimes_[static_cast<size_t>(Regime(decoder_rows))];
  bounds.all_kept = encoder_rows == decoder_rows;
  return bounds;
}

void PassGraphs::Run(int64_t encoder_rows, int64_t decoder_rows, bool eager, cudaStream_t stream) const {
  const int64_t e = Regime(encoder_rows), d = Regime(std::max<int64_t>(decoder_rows, 1));
  const bool all_kept = encoder_rows == decoder_rows;
  if (eager) {
    const PassBounds bounds = Bounds(encoder_rows, decoder_rows);
    passes_.Encoder(bounds, stream);
    passes_.Decoder(bounds, stream);
    return;
  }
  if (all_kept && static_cast<size_t>(e) < whole_.size()) {
    SENKO_CUDA(cudaGraphLaunch(whole_[static_cast<size_t>(e)], stream));
    return;
  }
  SENKO_CUDA(cudaGraphLaunch(encoder_[static_cast<size_t>(e)], stream));
  SENKO_CUDA(cudaGraphLaunch(decoder_rows == 0 ? no_rows_ : decoder_[static_cast<size_t>(d)], stream));
}

}  // namespace senko::runtime
