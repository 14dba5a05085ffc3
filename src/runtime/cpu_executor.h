// Runs steps of a model on the CPU: the workspace, the threads and the two passes in order.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "cache/page_pool.h"
#include "model/model.h"

namespace senko::runtime {

// One step at a time, from one thread. The model, pages and threads outlive it.
class CpuExecutor {
 public:
  CpuExecutor(const model::Model& model, cache::PagePool& pages, ThreadPool& pool,
              const model::WorkspaceLimits& limits);

  const model::Model& model() const { return context_.model; }
  cache::PagePool& pages() { return pages_; }
  const model::Workspace& workspace() const { return workspace_; }
  int64_t max_rows() const { return workspace_.limits.max_rows; }
  // Watches every following step; null stops.
  void set_probe(model::Probe* probe) { context_.probe = probe; }

  // Encoder pass, then decoder pass. Returns the number of kept rows.
  int64_t Run(std::span<const model::SequenceInput> sequences);

  // Logits [count, vocab] of kept rows [first, first + count) of the last step. finite[count] may be null.
  void Logits(int64_t first, int64_t count, float* logits, uint8_t* finite);

  // Logits [rows.size(), vocab] of these kept rows, ascending. Ends the use of the step's rows: no other logits of it
  // can be had afterwards.
  void GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite);

  // Absolute positions of the last step's kept rows.
  std::span<const int64_t> kept_positions() const;

 private:
  model::Workspace workspace_;
  cache::PagePool& pages_;
  model::PassContext context_;
};

}  // namespace senko::runtime
