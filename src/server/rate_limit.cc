#include "server/rate_limit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace senko::server {

RateLimit::RateLimit(int64_t per_minute, size_t num_keys)
    : per_minute_(static_cast<double>(per_minute)), buckets_(num_keys, Bucket{per_minute_, TimePoint::min()}) {}

int64_t RateLimit::Take(size_t key, TimePoint now) {
  if (per_minute_ <= 0) return 0;
  const double per_second = per_minute_ / 60;
  const std::lock_guard lock(mutex_);
  SENKO_CHECK(key < buckets_.size());
  Bucket& bucket = buckets_[key];
  if (bucket.filled == TimePoint::min()) bucket.filled = now;
  // Threads read the clock before they come here, so `now` may lie a little back.
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - bucket.filled).count());
  bucket.requests = std::min(per_minute_, bucket.requests + seconds * per_second);
  bucket.filled = std::max(bucket.filled, now);
  if (bucket.requests >= 1) {
    bucket.requests -= 1;
    return 0;
  }
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil((1 - bucket.requests) / per_second)));
}

}  // namespace senko::server
