// Requests per minute of each API key: token buckets that hold one minute's worth.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace senko::server {

// Thread-safe.
class RateLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `per_minute` 0: no limit.
  RateLimit(int64_t per_minute, size_t num_keys);

  // Takes one request out of `key`'s bucket and returns 0, or the whole seconds until there is one again (>= 1).
  int64_t Take(size_t key, TimePoint now);

 private:
  struct Bucket {
    double requests;
    TimePoint filled;
  };
  const double per_minute_;
  std::mutex mutex_;
  std::vector<Bucket> buckets_;
};

}  // namespace senko::server
