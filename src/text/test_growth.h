// How the work on an input grows with the input, for tests of what strangers may send.
#pragma once

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

namespace senko::text {

// `unit` again and again, to at least `size` bytes.
inline std::string Repeated(std::string_view unit, size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

inline double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// CPU time of `more()` by that of `less()`: the least of several tries, as soon as it is below `enough`, so that what
// else runs on the machine cannot make it larger. Neither may start threads.
inline double TimesTheWork(const std::function<void()>& less, const std::function<void()>& more, double enough) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5 && least > enough; ++i) {
    const double start = ThreadSeconds();
    less();
    const double middle = ThreadSeconds();
    more();
    least = std::min(least, (ThreadSeconds() - middle) / std::max(middle - start, 1e-4));
  }
  return least;
}

// The same for four times as much input: 4 for linear work, 16 for quadratic.
inline double GrowthOfFourfold(size_t size, const std::function<void(size_t)>& work) {
  return TimesTheWork([&] { work(size); }, [&] { work(4 * size); }, 6);
}

// Between linear, even where the larger input leaves the processor's caches, and quadratic.
inline constexpr double kMostGrowth = 10;

}  // namespace senko::text
