// Runs steps of a model: the two passes over sequences whose state lies in pages and slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/page_pool.h"
#include "model/model.h"
#include "runtime/step_profile.h"

namespace senko::runtime {

struct BlockCopy {
  uint8_t* to = nullptr;
  const uint8_t* from = nullptr;
};

// One step at a time, from one thread. The model and the pages outlive it; slots lie in the pages' memory.
class Executor {
 public:
  Executor(const model::Model& model, cache::PagePool& pages, const model::WorkspaceLimits& limits)
      : model_(model), pages_(pages), limits_(limits) {}
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const model::Model& model() const { return model_; }
  cache::PagePool& pages() { return pages_; }
  int64_t max_rows() const { return limits_.max_rows; }

  // Encoder pass, then decoder pass. Returns the number of kept rows.
  virtual int64_t Run(std::span<const model::SequenceInput> sequences) = 0;

  // Logits [count, vocab] of kept rows [first, first + count) of the last step. finite[count] may be null.
  virtual void Logits(int64_t first, int64_t count, float* logits, uint8_t* finite) = 0;

  // Logits [rows.size(), vocab] of these kept rows, ascending. Ends the use of the step's rows: no other logits of it
  // can be had afterwards.
  virtual void GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite) = 0;

  // Absolute positions of the last step's kept rows.
  virtual std::span<const int64_t> kept_positions() const = 0;

  // Blocks of `bytes` of the pages' memory, after the steps so far and before the next. No block is read that another
  // copy writes.
  virtual void Copy(std::span<const BlockCopy> copies, size_t bytes) = 0;

  // Returns when everything asked for so far has been done. A clock is read behind it; nobody else needs it.
  virtual void Wait() = 0;

  // How the following steps are launched: as captured graphs, or kernel by kernel with the same bits. Returns what now
  // holds: false where there are no graphs, on a CPU or because none were captured.
  virtual bool UseGraphs(bool graphs) = 0;

  // Watches every following step; null stops. A GPU then computes one operator after the other and waits for each.
  virtual void set_probe(model::Probe* probe) = 0;

  // Runs the last step again, several times, by operator and as a whole; logits are of no use afterwards. Errors:
  // kUnsupported where nobody can clock it so.
  virtual StepProfile ProfileLastStep() = 0;

  // Of the fixed activations.
  virtual int64_t workspace_bytes() const = 0;

 private:
  const model::Model& model_;
  cache::PagePool& pages_;
  const model::WorkspaceLimits limits_;
};

}  // namespace senko::runtime
