// Timing one piece of work.
#pragma once

#include <functional>
#include <vector>

namespace senko::bench {

// Runs `work` until `min_seconds` have passed and at least `min_runs` runs are in (one more to warm up first); the
// median of the runs in seconds.
double MedianSeconds(const std::function<void()>& work, double min_seconds = 0.3, int min_runs = 5);

// The upper one of the two in the middle; `values` is not empty.
double Median(std::vector<double> values);

}  // namespace senko::bench
