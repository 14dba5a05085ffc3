#include "bench/measure.h"

#include <algorithm>
#include <chrono>
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
  std::nth_element(runs.begin(), runs.begin() + static_cast<long>(runs.size() / 2), runs.end());
  return runs[runs.size() / 2];
}

}  // namespace senko::bench
