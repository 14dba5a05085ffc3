// What this machine can do at most: the yardsticks that operator benchmarks report fractions of.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace senko {

// Bytes per second that all threads together read from memory: the best of `passes` over a buffer of `bytes`
// (0: four times the last-level cache, between 256 MiB and 2 GiB), which is allocated and released here.
double MeasureReadBandwidth(ThreadPool& pool, size_t bytes = 0, int passes = 5);

// float32 operations per second of all threads together, a fused multiply-add counting two, with independent chains in
// registers on the best SIMD target: the best of `passes`, some milliseconds each.
double MeasureFmaPeak(ThreadPool& pool, int passes = 5);

}  // namespace senko
