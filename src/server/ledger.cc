#include "server/ledger.h"

#include <utility>

#include "base/check.h"

namespace senko::server {

Held::Held(Held&& other) noexcept : ledger_(std::move(other.ledger_)), bytes_(std::exchange(other.bytes_, 0)) {}

Held& Held::operator=(Held&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  ledger_ = std::move(other.ledger_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

bool Held::Take(int64_t bytes) {
  SENKO_CHECK(ledger_ && bytes >= 0);
  int64_t held = ledger_->held_;
  do {
    if (bytes > ledger_->limit_ || held > ledger_->limit_ - bytes) {
      ++ledger_->refusals_;
      return false;
    }
  } while (!ledger_->held_.compare_exchange_weak(held, held + bytes));
  bytes_ += bytes;
  return true;
}

void Held::Force(int64_t bytes) {
  SENKO_CHECK(ledger_ && bytes >= 0);
  ledger_->held_ += bytes;
  bytes_ += bytes;
}

void Held::Clear() noexcept {
  if (bytes_ > 0) ledger_->held_ -= std::exchange(bytes_, 0);
}

}  // namespace senko::server
