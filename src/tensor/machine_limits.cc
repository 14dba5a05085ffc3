#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/machine_limits.cc"
#include "tensor/machine_limits.h"

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace senko {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Folds count bytes (a multiple of 512) so that no load can be left out.
uint64_t ReadBytes(const uint8_t* p, size_t count) {
  const hn::CappedTag<uint64_t, 8> d;
  auto a = hn::Zero(d), b = a;
  const size_t step = 8 * hn::Lanes(d);
  for (size_t i = 0; i < count; i += 2 * step) {
    hwy::Prefetch(p + i + 4096);
    a = hn::Or(a, hn::Load(d, reinterpret_cast<const uint64_t*>(p + i)));
    b = hn::Or(b, hn::Load(d, reinterpret_cast<const uint64_t*>(p + i + step)));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Or(a, b)));
}

// `steps` dependent multiply-adds in each of 12 chains: two ports times a latency of 4 need 8, 16 registers hold 12.
// Returns the number of operations; *sink keeps them alive.
double MultiplyAdd(int64_t steps, float* sink) {
  const hn::CappedTag<float, 16> d;
  const auto factor = hn::Set(d, 0.5f), term = hn::Set(d, *sink);
  // Different starting values, or the compiler keeps one chain for all twelve.
  const auto start = [&](float i) HWY_ATTR { return hn::Set(d, *sink + i); };
  auto c0 = start(0), c1 = start(1), c2 = start(2), c3 = start(3), c4 = start(4), c5 = start(5);
  auto c6 = start(6), c7 = start(7), c8 = start(8), c9 = start(9), c10 = start(10), c11 = start(11);
  for (int64_t i = 0; i < steps; ++i) {
    c0 = hn::MulAdd(c0, factor, term);
    c1 = hn::MulAdd(c1, factor, term);
    c2 = hn::MulAdd(c2, factor, term);
    c3 = hn::MulAdd(c3, factor, term);
    c4 = hn::MulAdd(c4, factor, term);
    c5 = hn::MulAdd(c5, factor, term);
    c6 = hn::MulAdd(c6, factor, term);
    c7 = hn::MulAdd(c7, factor, term);
    c8 = hn::MulAdd(c8, factor, term);
    c9 = hn::MulAdd(c9, factor, term);
    c10 = hn::MulAdd(c10, factor, term);
    c11 = hn::MulAdd(c11, factor, term);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)));
  *sink = hn::GetLane(hn::Add(sum, hn::Add(hn::Add(c8, c9), hn::Add(c10, c11))));
  return static_cast<double>(steps) * 12.0 * 2.0 * static_cast<double>(hn::Lanes(d));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace senko
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tensor/buffer.h"

namespace senko {
namespace {

HWY_EXPORT(ReadBytes);
HWY_EXPORT(MultiplyAdd);

constexpr size_t kPiece = size_t{1} << 20;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

size_t DefaultBytes() {
  long cache = -1;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  const size_t bytes = cache > 0 ? static_cast<size_t>(cache) * 4 : 0;
  return std::clamp(bytes, size_t{256} << 20, size_t{2} << 30);
}

}  // namespace

double MeasureReadBandwidth(ThreadPool& pool, size_t bytes, int passes) {
  SENKO_CHECK(passes > 0);
  const size_t pieces = std::max<size_t>(1, (bytes == 0 ? DefaultBytes() : bytes) / kPiece);
  Buffer<uint8_t> buffer(pieces * kPiece + 8192);  // the prefetch looks ahead
  std::memset(buffer.data() + pieces * kPiece, 0, 8192);
  pool.ParallelFor(static_cast<int64_t>(pieces), 1, [&](int64_t begin, int64_t end, int) {
    std::memset(buffer.data() + begin * kPiece, 1, (end - begin) * kPiece);
  });
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double start = Seconds();
    pool.ParallelFor(static_cast<int64_t>(pieces), 1, [&](int64_t begin, int64_t end, int) {
      sink += HWY_DYNAMIC_DISPATCH(ReadBytes)(buffer.data() + begin * kPiece, (end - begin) * kPiece);
    });
    best = std::max(best, static_cast<double>(pieces * kPiece) / (Seconds() - start));
  }
  SENKO_CHECK(sink.load() != 0);
  return best;
}

double MeasureFmaPeak(ThreadPool& pool, int passes) {
  SENKO_CHECK(passes > 0);
  constexpr int64_t kSteps = 100000;
  const int64_t tasks = int64_t{8} * pool.size();
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<double> done(static_cast<size_t>(tasks), 0.0);
    std::vector<float> sinks(static_cast<size_t>(tasks), 1.0f);
    const double start = Seconds();
    pool.ParallelFor(tasks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) done[t] = HWY_DYNAMIC_DISPATCH(MultiplyAdd)(kSteps, &sinks[t]);
    });
    const double seconds = Seconds() - start;
    double total = 0;
    for (double operations : done) total += operations;
    for (float sink : sinks) SENKO_CHECK(sink > 0);
    best = std::max(best, total / seconds);
  }
  return best;
}

}  // namespace senko
#endif  // HWY_ONCE
