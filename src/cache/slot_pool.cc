#include "cache/slot_pool.h"

#include <utility>

namespace senko::cache {

SlotRef::SlotRef(SlotRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), index_(std::exchange(other.index_, -1)) {}

SlotRef& SlotRef::operator=(SlotRef&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

SlotRef::~SlotRef() {
  if (pool_ != nullptr) pool_->free_.push_back(index_);
}

uint8_t* SlotRef::data() const { return pool_->data(index_); }

SlotPool::SlotPool(const config::SlotLayout& layout, int64_t num_slots, Memory& memory)
    : layout_(layout), num_slots_(num_slots), memory_(memory) {
  slab_bytes_ = static_cast<size_t>(num_slots * layout.slot_bytes);
  slab_ = memory_.Take(slab_bytes_, "sequence slots");
  free_.reserve(static_cast<size_t>(num_slots));
  for (int64_t s = num_slots - 1; s >= 0; --s) free_.push_back(static_cast<int32_t>(s));
}

SlotPool::~SlotPool() { memory_.Give(slab_, slab_bytes_); }

std::optional<SlotRef> SlotPool::Allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t slot = free_.back();
  free_.pop_back();
#ifndef NDEBUG
  memory_.Fill(data(slot), 0xFF, static_cast<size_t>(layout_.slot_bytes));
#endif
  return SlotRef(this, slot);
}

}  // namespace senko::cache
