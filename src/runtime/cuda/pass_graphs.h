// Captured passes, one for each kernel regime: how many rows there may be at most.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "runtime/cuda/device_passes.h"

namespace senko::runtime {

// Owned by one executor, used by its thread.
class PassGraphs {
 public:
  // The bounds that graphs are made for: ascending, the last is `max_rows`.
  static std::vector<int64_t> Regimes(int64_t max_rows);

  PassGraphs(DevicePasses& passes, int64_t max_rows);
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  // Captures and instantiates every regime; kernels are loaded by then. Steps of rows that are all kept have graphs of
  // both passes in one up to `whole_rows`.
  void Capture(int64_t whole_rows, cudaStream_t stream);

  // Both passes of a step with so many rows. `eager`: the same launches without graphs.
  void Run(int64_t encoder_rows, int64_t decoder_rows, bool eager, cudaStream_t stream) const;

  // What a step with so many rows is launched for.
  PassBounds Bounds(int64_t encoder_rows, int64_t decoder_rows) const;

  int64_t size() const { return static_cast<int64_t>(encoder_.size() + decoder_.size() + whole_.size()); }
  int64_t graphs() const { return graphs_; }
  int64_t nodes() const { return nodes_; }

 private:
  template <typename Launch>
  cudaGraphExec_t Record(const Launch& launch, cudaStream_t stream);
  int64_t Regime(int64_t rows) const;

  DevicePasses& passes_;
  std::vector<int64_t> regimes_;
  std::vector<cudaGraphExec_t> encoder_, decoder_, whole_;  // by regime
  cudaGraphExec_t no_rows_ = nullptr;                       // the decoder pass when nothing is kept
  int64_t graphs_ = 0;
  int64_t nodes_ = 0;
};

}  // namespace senko::runtime
