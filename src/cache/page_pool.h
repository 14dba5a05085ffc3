// The slab of global-KV pages and the references that own them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cache/memory.h"
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
//
// One free list, in the order in which pages are handed out: first those whose content nobody remembers, then the
// remembered ones (Remember), the longest unreferenced first.
class PagePool {
 public:
  // Errors: kResourceExhausted when the mapping cannot be made.
  PagePool(const config::PageLayout& layout, int64_t num_pages, Memory& memory = HostMemory());
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const config::PageLayout& layout() const { return layout_; }
  uint8_t* slab() { return slab_; }
  uint8_t* data(int32_t page) { return slab_ + page * layout_.page_bytes; }
  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()) - 1; }
  // Pages without a reference, remembered ones included: what Allocate can still give.
  int64_t free_pages() const { return free_; }
  int64_t remembered_free_pages() const { return remembered_free_; }
  int32_t references(int32_t page) const { return pages_[static_cast<size_t>(page)].references; }

  // A page with one reference, or nothing when every page has one. A remembered page is forgotten first. Debug builds
  // hand it over poisoned (0xFF: NaN codes).
  std::optional<PageRef> Allocate();
  // A reference to a remembered page, whether or not it has others.
  PageRef Adopt(int32_t page);

  // The page's content is worth finding again: without references it stays as it is until its memory is needed.
  void Remember(int32_t page);
  void Forget(int32_t page);
  // Called when Allocate takes a remembered page, before anything is written to it.
  void OnForgotten(std::function<void(int32_t)> callback) { on_forgotten_ = std::move(callback); }

 private:
  friend class PageRef;
  struct Page {
    int32_t references = 0;
    bool remembered = false;
    int32_t next = -1;  // in the free list, when there is no reference
    int32_t prev = -1;
  };
  void Retain(int32_t page) { ++pages_[static_cast<size_t>(page)].references; }
  void Release(int32_t page);
  void Link(int32_t page);  // puts an unreferenced page in its place of the free list
  void Unlink(int32_t page);

  config::PageLayout layout_;
  Memory& memory_;
  uint8_t* slab_ = nullptr;
  size_t slab_bytes_ = 0;
  std::vector<Page> pages_;  // the last one is the free list's head
  int64_t free_ = 0;
  int64_t remembered_free_ = 0;
  std::function<void(int32_t)> on_forgotten_;
};

}  // namespace senko::cache
