// Reads every weight once and looks for values no trained model holds.
#pragma once

#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"

namespace senko::checkpoint {

// Error kNumerical lists, per tensor, how many values are NaN (e4m3 codes 0x7F and 0xFF, ue8m0 255, BF16,
// F32), infinite, or absurd (block scales above 2^32), and the first one's index. `checkpoint` matches
// `expected`.
void ScanValues(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& expected, ThreadPool* pool,
                const ProgressSink& progress);

}  // namespace senko::checkpoint
