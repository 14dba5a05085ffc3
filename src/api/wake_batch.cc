#include "api/wake_batch.h"

#include <algorithm>

#include "base/check.h"

namespace senko::api {
namespace {

thread_local WakeBatch* current = nullptr;

}  // namespace

WakeBatch::WakeBatch() {
  SENKO_CHECK(current == nullptr);
  waiting_.reserve(kMost);
  current = this;
}

WakeBatch::~WakeBatch() {
  Flush();
  current = nullptr;
}

void WakeBatch::Flush() noexcept {
  for (const std::shared_ptr<Waker>& waker : waiting_) waker->WakeOnce();
  waiting_.clear();
}

void WakeBatch::Wake(const std::shared_ptr<Waker>& waker) noexcept {
  if (waker->woken_) return;
  if (current == nullptr || current->waiting_.size() == kMost) return waker->WakeOnce();
  std::vector<std::shared_ptr<Waker>>& waiting = current->waiting_;
  if (std::find(waiting.begin(), waiting.end(), waker) == waiting.end()) waiting.push_back(waker);
}

}  // namespace senko::api
