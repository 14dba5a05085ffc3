#include "cache/page_pool.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "cache/mapping.h"

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

PagePool::PagePool(const config::PageLayout& layout, int64_t num_pages) : layout_(layout) {
  SENKO_CHECK(num_pages >= 0 && num_pages < (int64_t{1} << 31));
  slab_bytes_ = static_cast<size_t>(num_pages * layout.page_bytes);
  slab_ = MapAnonymous(slab_bytes_, "KV pages");
  references_.assign(static_cast<size_t>(num_pages), 0);
  free_.reserve(references_.size());
  for (int64_t p = num_pages - 1; p >= 0; --p) free_.push_back(static_cast<int32_t>(p));
}

PagePool::~PagePool() { Unmap(slab_, slab_bytes_); }

std::optional<PageRef> PagePool::Allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
#ifndef NDEBUG
  // Without KV sources a page is empty and there is no slab.
  if (slab_ != nullptr) std::memset(slab_ + page * layout_.page_bytes, 0xFF, static_cast<size_t>(layout_.page_bytes));
#endif
  return PageRef(this, page);
}

void PagePool::Release(int32_t page) {
  int32_t& count = references_[static_cast<size_t>(page)];
  SENKO_CHECK(count > 0);
  if (--count == 0) free_.push_back(page);
}

}  // namespace senko::cache
