// Copies of slots at page boundaries, for hits without replay: a sequence that starts from one is exact.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/memory.h"
#include "cache/page_hash.h"
#include "config/kv_layout.h"

namespace senko::cache {

class SnapshotStore;

// Keeps one snapshot from being replaced; move-only. Must not outlive its store.
class SnapshotRef {
 public:
  SnapshotRef() = default;
  SnapshotRef(SnapshotRef&& other) noexcept;
  SnapshotRef& operator=(SnapshotRef&& other) noexcept;
  ~SnapshotRef();
  int32_t index() const { return index_; }
  explicit operator bool() const { return store_ != nullptr; }

 private:
  friend class SnapshotStore;
  SnapshotRef(SnapshotStore* store, int32_t index) : store_(store), index_(index) {}
  SnapshotStore* store_ = nullptr;
  int32_t index_ = -1;
};

// A snapshot is named after the last page before it. Its budget is its own; the least recently used one gives way.
// Single-threaded.
class SnapshotStore {
 public:
  // As many snapshots of `layout` as `budget_bytes` hold, possibly none. Errors: kResourceExhausted.
  SnapshotStore(const config::SlotLayout& layout, int64_t budget_bytes, Memory& memory = HostMemory());
  ~SnapshotStore();
  SnapshotStore(const SnapshotStore&) = delete;
  SnapshotStore& operator=(const SnapshotStore&) = delete;

  int64_t capacity() const { return static_cast<int64_t>(entries_.size()); }
  int64_t size() const { return static_cast<int64_t>(by_name_.size()); }
  uint8_t* data(int32_t snapshot) { return slab_ + snapshot * slot_bytes_; }

  bool Contains(const PageHash& name) const { return by_name_.contains(name); }
  // The snapshot of that name, now the most recently used; empty when there is none.
  SnapshotRef Find(const PageHash& name);
  // Memory for a new snapshot, in nobody's sight until Publish. Empty when none can be had.
  SnapshotRef Reserve();
  // Its bytes are written; from here on it is found. False: the name is taken, and it is dropped. `tail_start`: from
  // which position on the windows of the layers after the last KV source are valid.
  bool Publish(const SnapshotRef& snapshot, const PageHash& name, int64_t tail_start);
  // Of a published snapshot.
  int64_t tail_start(const SnapshotRef& snapshot) const {
    return entries_[static_cast<size_t>(snapshot.index_)].tail_start;
  }
  // Removes the name; the memory is reused once nobody holds it.
  void Drop(const PageHash& name);

 private:
  friend class SnapshotRef;
  enum class State { kFree, kReserved, kPublished, kDropped };
  struct Entry {
    State state = State::kFree;
    int32_t holders = 0;
    PageHash name;
    int64_t tail_start = 0;
    std::list<int32_t>::iterator place;  // in recency_, when published
  };
  void Release(int32_t snapshot);

  int64_t slot_bytes_ = 0;
  Memory& memory_;
  uint8_t* slab_ = nullptr;
  size_t slab_bytes_ = 0;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::list<int32_t> recency_;  // published; least recently used first
  std::unordered_map<PageHash, int32_t, PageHashHash> by_name_;
};

}  // namespace senko::cache
