#include "api/wake_batch.h"

#include <utility>

#include "base/check.h"

namespace senko::api {
namespace {

thread_local WakeBatch* current = nullptr;

}  // namespace

WakeBatch::WakeBatch() {
  SENKO_CHECK(current == nullptr);
  current = this;
}

WakeBatch::~WakeBatch() {
  Flush();
  current = nullptr;
}

void WakeBatch::Flush() {
  for (const std::shared_ptr<Waker>& waker : waiting_) waker->Wake();
  waiting_.clear();
}

void WakeBatch::Wake(std::shared_ptr<Waker> waker) {
  if (current != nullptr) {
    current->waiting_.push_back(std::move(waker));
  } else {
    waker->Wake();
  }
}

}  // namespace senko::api
