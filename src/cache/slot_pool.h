// Slots: everything private to one running sequence (architecture.md section 3).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/memory.h"
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
  int32_t index() const { return index_; }
  uint8_t* data() const;
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class SlotPool;
  SlotRef(SlotPool* pool, int32_t index) : pool_(pool), index_(index) {}
  SlotPool* pool_ = nullptr;
  int32_t index_ = -1;
};

// Single-threaded.
class SlotPool {
 public:
  // Errors: kResourceExhausted when the mapping cannot be made.
  SlotPool(const config::SlotLayout& layout, int64_t num_slots, Memory& memory = HostMemory());
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  const config::SlotLayout& layout() const { return layout_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }
  uint8_t* data(int32_t slot) { return slab_ + slot * layout_.slot_bytes; }

  // Debug builds hand it over poisoned (0xFF: NaN codes), so that a row nobody wrote is seen.
  std::optional<SlotRef> Allocate();

 private:
  friend class SlotRef;
  config::SlotLayout layout_;
  int64_t num_slots_ = 0;
  Memory& memory_;
  uint8_t* slab_ = nullptr;
  size_t slab_bytes_ = 0;
  std::vector<int32_t> free_;
};

}  // namespace senko::cache
