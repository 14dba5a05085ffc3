// The least that a step must read and write, for fractions of a limit.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/model.h"

namespace senko::bench {

// A decode step: `batch` sequences of which each has `context` tokens behind it and runs `rows`, all kept. Their
// prompts share pages, as bench::Batch's do.
struct StepShape {
  int64_t batch = 1;
  int64_t context = 0;
  int64_t rows = 1;
  int64_t total_rows() const { return batch * rows; }
};

// Distinct experts that `rows` rows take of `experts`, `topk` each, if all are as likely.
double ExpectedExperts(int64_t experts, int64_t topk, int64_t rows);

// Of every weight that both passes of the step's rows need, once: experts as above.
double WeightBytes(const model::Model& model, int64_t rows);

// Window rows, entries and index keys that a token at `position` reads.
double KvBytes(const config::ModelConfig& config, int64_t position);

// By operator as StepProfile names them, over all layers: weights, the rows going in and out, and what is read of KV,
// each distinct byte once. Operators of which that is not known (Engram's gather, bookkeeping) are missing.
std::map<std::string, double> StepBytes(const model::Model& model, const StepShape& shape);

}  // namespace senko::bench
