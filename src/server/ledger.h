// Bytes that all connections hold together, and the most they may: counted before they are kept, given back by whoever
// kept them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace senko::server {

// Thread-safe.
class Ledger {
 public:
  explicit Ledger(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }
  int64_t held() const { return held_; }
  uint64_t refusals() const { return refusals_; }  // Takes that found no room, since the start

 private:
  friend class Held;
  const int64_t limit_;
  std::atomic<int64_t> held_ = 0;
  std::atomic<uint64_t> refusals_ = 0;
};

// One owner's part of a ledger; what it has goes back with it. Of one thread at a time.
class Held {
 public:
  Held() = default;  // of no ledger: takes nothing
  explicit Held(std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {}
  ~Held() { Clear(); }
  Held(Held&& other) noexcept;
  Held& operator=(Held&& other) noexcept;

  int64_t bytes() const { return bytes_; }
  // False, and nothing is taken: with them all would hold more than the limit.
  [[nodiscard]] bool Take(int64_t bytes);
  // Whatever the limit says: for what is small.
  void Force(int64_t bytes);
  void Clear() noexcept;

 private:
  std::shared_ptr<Ledger> ledger_;
  int64_t bytes_ = 0;
};

}  // namespace senko::server
