#include "cache/page_pool.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace senko::cache {

PageRef::PageRef(PageRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), index_(std::exchange(other.index_, -1)) {}

PageRef& PageRef::operator=(PageRef&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

PageRef::~PageRef() {
  if (pool_ != nullptr) pool_->Release(index_);
}

PageRef PageRef::Share() const {
  SENKO_CHECK(pool_ != nullptr);
  pool_->Retain(index_);
  return PageRef(pool_, index_);
}

PagePool::PagePool(const config::PageLayout& layout, int64_t num_pages, Memory& memory)
    : layout_(layout), memory_(memory) {
  SENKO_CHECK(num_pages >= 0 && num_pages < (int64_t{1} << 31) - 1);
  slab_bytes_ = static_cast<size_t>(num_pages * layout.page_bytes);
  slab_ = memory_.Take(slab_bytes_, "KV pages");
  pages_.resize(static_cast<size_t>(num_pages) + 1);
  const auto head = static_cast<int32_t>(num_pages);
  pages_.back().next = pages_.back().prev = head;
  for (int32_t p = head - 1; p >= 0; --p) Link(p);
}

PagePool::~PagePool() { memory_.Give(slab_, slab_bytes_); }

void PagePool::Link(int32_t page) {
  const auto head = static_cast<int32_t>(pages_.size() - 1);
  Page& p = pages_[static_cast<size_t>(page)];
  // Remembered pages queue at the back, the others are taken next.
  p.prev = p.remembered ? pages_[static_cast<size_t>(head)].prev : head;
  p.next = pages_[static_cast<size_t>(p.prev)].next;
  pages_[static_cast<size_t>(p.prev)].next = page;
  pages_[static_cast<size_t>(p.next)].prev = page;
  ++free_;
  remembered_free_ += p.remembered;
}

void PagePool::Unlink(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  pages_[static_cast<size_t>(p.prev)].next = p.next;
  pages_[static_cast<size_t>(p.next)].prev = p.prev;
  p.next = p.prev = -1;
  --free_;
  remembered_free_ -= p.remembered;
}

std::optional<PageRef> PagePool::Allocate() {
  if (free_ == 0) return std::nullopt;
  const int32_t page = pages_.back().next;
  Unlink(page);
  Page& p = pages_[static_cast<size_t>(page)];
  if (p.remembered) {
    p.remembered = false;
    if (on_forgotten_) on_forgotten_(page);
  }
  p.references = 1;
#ifndef NDEBUG
  // Without KV sources a page is empty and there is no slab.
  if (slab_ != nullptr) memory_.Fill(data(page), 0xFF, static_cast<size_t>(layout_.page_bytes));
#endif
  return PageRef(this, page);
}

PageRef PagePool::Adopt(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  SENKO_CHECK(p.remembered);
  if (p.references == 0) Unlink(page);
  ++p.references;
  return PageRef(this, page);
}

void PagePool::Remember(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  SENKO_CHECK(p.references > 0);
  p.remembered = true;
}

void PagePool::Forget(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (!p.remembered) return;
  if (p.references == 0) {
    Unlink(page);
    p.remembered = false;
    Link(page);
  } else {
    p.remembered = false;
  }
}

void PagePool::Release(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  SENKO_CHECK(p.references > 0);
  if (--p.references == 0) Link(page);
}

}  // namespace senko::cache
