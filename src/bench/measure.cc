#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace senko::bench {

double MedianSeconds(const std::function<void()>& work, double min_seconds, int min_runs) {
  using Clock = std::chrono::steady_clock;
  work();
  std::vector<double> runs;
  const auto start = Clock::now();
  for (;;) {
    const auto begin = Clock::now();
    work();
    const auto end = Clock::now();
    runs.push_back(std::chrono::duration<double>(end - begin).count());
    const bool enough_time = std::chrono::duration<double>(end - start).count() >= min_seconds;
    if (enough_time && static_cast<int>(runs.size()) >= min_runs) break;
  }
  return Median(std::move(runs));
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace senko::bench
