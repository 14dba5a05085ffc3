// The slab of global-KV pages and the references that own them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/kv_layout.h"

namespace senko::cache {

class PagePool;

// Owns one reference to a page; move-only, so a leak or a double free does not compile. Must not outlive its pool.
class PageRef {
 public:
  PageRef() = default;
  PageRef(PageRef&& other) noexcept;
  PageRef& operator=(PageRef&& other) noexcept;
  ~PageRef();
  int32_t index() const { return index_; }
  explicit operator bool() const { return pool_ != nullptr; }
  // A second reference to the same page.
  PageRef Share() const;

 private:
  friend class PagePool;
  PageRef(PagePool* pool, int32_t index) : pool_(pool), index_(index) {}
  PagePool* pool_ = nullptr;
  int32_t index_ = -1;
};

// One contiguous anonymous mapping; memory becomes resident page by page as entries are written. Single-threaded.
class PagePool {
 public:
  // Errors: kResourceExhausted when the mapping cannot be made.
  PagePool(const config::PageLayout& layout, int64_t num_pages);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const config::PageLayout& layout() const { return layout_; }
  uint8_t* slab() { return slab_; }
  int64_t num_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  // A page with one reference, or nothing when none is free. Debug builds hand it over poisoned (0xFF: NaN codes).
  std::optional<PageRef> Allocate();

 private:
  friend class PageRef;
  void Retain(int32_t page) { ++references_[static_cast<size_t>(page)]; }
  void Release(int32_t page);

  config::PageLayout layout_;
  uint8_t* slab_ = nullptr;
  size_t slab_bytes_ = 0;
  std::vector<int32_t> references_;  // per page; 0: free
  std::vector<int32_t> free_;        // stack of free pages
};

}  // namespace senko::cache
