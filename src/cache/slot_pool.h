// Slots: everything private to one running sequence (architecture.md section 3).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/kv_layout.h"

namespace senko::cache {

class SlotPool;

// Owns one slot; move-only. Must not outlive its pool.
class SlotRef {
 public:
  SlotRef() = default;
  SlotRef(SlotRef&& other) noexcept;
  SlotRef& operator=(SlotRef&& other) noexcept;
  ~SlotRef();
  uint8_t* data() const { return data_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class SlotPool;
  SlotRef(SlotPool* pool, int32_t index, uint8_t* data) : pool_(pool), index_(index), data_(data) {}
  SlotPool* pool_ = nullptr;
  int32_t index_ = -1;
  uint8_t* data_ = nullptr;
};

// Single-threaded.
class SlotPool {
 public:
  SlotPool(const config::SlotLayout& layout, int64_t num_slots);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  const config::SlotLayout& layout() const { return layout_; }
  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }

  // Debug builds hand it over poisoned (0xFF: NaN codes), so that a row nobody wrote is seen.
  std::optional<SlotRef> Allocate();

 private:
  friend class SlotRef;
  config::SlotLayout layout_;
  uint8_t* slab_ = nullptr;
  size_t slab_bytes_ = 0;
  std::vector<int32_t> free_;
};

}  // namespace senko::cache
