// Sequences of one length for measuring steps of many: they share the pages of one prompt and go on by themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"

namespace senko::bench {

// Random tokens throughout.
class Batch {
 public:
  // Runs a prompt of `context` tokens (a multiple of the block size) once; every sequence starts behind it.
  // Errors: kResourceExhausted when pages or slots are missing.
  Batch(runtime::Executor& executor, cache::SlotPool& slots, int64_t batch, int64_t context);

  // Pages that a batch needs to go on by `tokens` each.
  static int64_t Pages(const config::PageLayout& layout, int64_t batch, int64_t context, int64_t tokens);

  // The next `rows` tokens of every sequence as one step.
  void Step(int64_t rows);

 private:
  struct Sequence {
    cache::SlotRef slot;
    std::vector<cache::PageRef> pages;  // its own, behind the shared ones
    std::vector<int32_t> table;
  };
  int32_t NextToken();

  runtime::Executor& executor_;
  std::vector<cache::PageRef> shared_;
  std::vector<int32_t> shared_table_;
  std::vector<Sequence> sequences_;
  int64_t context_;
  int64_t size_;
  uint64_t state_ = 1;
};

}  // namespace senko::bench
