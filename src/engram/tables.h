// Engram's tables where they lie in the checkpoint's mapping: nothing is copied, rows are read on demand.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/model_config.h"
#include "ops/engram/engram.h"

namespace senko::engram {

// Views; the checkpoint outlives them. Immutable, safe from any thread.
class Tables {
 public:
  // Binds layers.{l}.engram.embed.{weight,scale} of every Engram layer and advises the kernel that they are
  // read at random, so that a fault reads one row's page and no neighbourhood of it. Errors: kNotFound,
  // kCorrupt (dtype or shape) naming the tensor.
  Tables(const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config);

  int64_t size() const { return static_cast<int64_t>(tables_.size()); }
  const ops::EngramTable& operator[](int64_t layer) const { return tables_[static_cast<size_t>(layer)]; }

  // Starts reading rows that will be gathered soon, all at once, so that a table colder than memory costs one
  // wait instead of one per row; tables of less than 256 MiB are left alone. Only advice: returns before anything is
  // read. rows in [0, table rows), else SENKO_CHECK.
  void WillNeed(int64_t layer, std::span<const int64_t> rows) const;

 private:
  std::vector<ops::EngramTable> tables_;
};

}  // namespace senko::engram
