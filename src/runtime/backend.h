// Where a model runs: the CPU it was loaded on, or a GPU that its weights were brought to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "cache/memory.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "runtime/executor.h"
#include "runtime/step_runner.h"

namespace senko::runtime {

// The largest step, and what state it may meet.
struct ExecutorLimits {
  int64_t max_rows = 512;       // --max-num-batched-tokens
  int64_t max_sequences = 1;    // --max-num-seqs
  int64_t max_positions = 0;    // of one sequence; 0: the model's
  int64_t max_drawn_rows = 16;  // rows whose logits are held at once
};

struct BackendOptions {
  std::string device = "cpu";           // "cpu" or "cuda"
  bool cuda_graphs = true;              // false: the same kernels, launched one by one
  double gpu_memory_utilization = 0.9;  // of the GPU's memory, for everything
  bool chosen_ops = false;              // --op-impl was given
};

// Outlives the pools in its memory and the executors. The model and the threads outlive it.
class Backend {
 public:
  virtual ~Backend() = default;
  // Of pages, slots and snapshots.
  virtual cache::Memory& memory() = 0;
  // Bytes that pages, slots and snapshots take when nobody says, beside an executor of these limits. Errors:
  // kResourceExhausted with the sums and the largest step that fits.
  virtual int64_t DefaultCacheBytes(const ExecutorLimits& limits) const = 0;
  // Refuses so many bytes of them where they cannot be had. Errors: as above.
  virtual void CheckCacheBytes(const ExecutorLimits& limits, int64_t bytes) const = 0;
  // What is taken and what is left, for a person; with such an executor. Empty where there is nothing to say.
  virtual std::string Describe(const ExecutorLimits& limits) const = 0;
  // How long the parts of the start took, and how much memory really went, for a person; once the executor is there.
  // Likewise empty.
  virtual std::string DescribeStart() const { return {}; }
  virtual std::unique_ptr<Executor> MakeExecutor(cache::PagePool& pages, const ExecutorLimits& limits) = 0;
  // Of an executor made here. `max_drawn_rows`: the most rows that a step draws from.
  virtual std::unique_ptr<StepRunner> MakeRunner(Executor& executor, cache::SlotPool& slots,
                                                 cache::SnapshotStore& snapshots, ThreadPool& pool,
                                                 int64_t max_drawn_rows) = 0;
};

// Rows of a step where nobody says. A CPU's step takes time with every row, and every stream waits for it; a GPU has to
// be filled.
inline int64_t DefaultStepRows(const std::string& device) { return device == "cuda" ? 8192 : 512; }

// Brings the weights there. Errors: kUnsupported when this build, the machine or the configuration rules the device
// out, kResourceExhausted when the weights do not fit, kInvalidArgument for another name.
std::unique_ptr<Backend> MakeBackend(const BackendOptions& options, const model::Model& model, ThreadPool& pool,
                                     const ProgressSink& progress);

}  // namespace senko::runtime
