#include "cache/snapshot_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace senko::cache {

SnapshotRef::SnapshotRef(SnapshotRef&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), index_(std::exchange(other.index_, -1)) {}

SnapshotRef& SnapshotRef::operator=(SnapshotRef&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(index_, other.index_);
  return *this;
}

SnapshotRef::~SnapshotRef() {
  if (store_ != nullptr) store_->Release(index_);
}

SnapshotStore::SnapshotStore(const config::SlotLayout& layout, int64_t budget_bytes, Memory& memory)
    : slot_bytes_(layout.slot_bytes), memory_(memory) {
  const int64_t count = slot_bytes_ > 0 ? std::max<int64_t>(budget_bytes, 0) / slot_bytes_ : 0;
  SENKO_CHECK(count < (int64_t{1} << 31));
  slab_bytes_ = static_cast<size_t>(count * slot_bytes_);
  slab_ = memory_.Take(slab_bytes_, "window snapshots");
  entries_.resize(static_cast<size_t>(count));
  for (int64_t s = count - 1; s >= 0; --s) free_.push_back(static_cast<int32_t>(s));
}

SnapshotStore::~SnapshotStore() { memory_.Give(slab_, slab_bytes_); }

SnapshotRef SnapshotStore::Find(const PageHash& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return {};
  Entry& entry = entries_[static_cast<size_t>(found->second)];
  recency_.splice(recency_.end(), recency_, entry.place);
  ++entry.holders;
  return SnapshotRef(this, found->second);
}

SnapshotRef SnapshotStore::Reserve() {
  if (free_.empty()) {
    const auto oldest = std::find_if(recency_.begin(), recency_.end(),
                                     [this](int32_t s) { return entries_[static_cast<size_t>(s)].holders == 0; });
    if (oldest == recency_.end()) return {};
    Drop(PageHash(entries_[static_cast<size_t>(*oldest)].name));
  }
  const int32_t snapshot = free_.back();
  free_.pop_back();
  Entry& entry = entries_[static_cast<size_t>(snapshot)];
  entry.state = State::kReserved;
  entry.holders = 1;
  return SnapshotRef(this, snapshot);
}

bool SnapshotStore::Publish(const SnapshotRef& snapshot, const PageHash& name, int64_t tail_start) {
  SENKO_CHECK(snapshot.store_ == this);
  Entry& entry = entries_[static_cast<size_t>(snapshot.index_)];
  SENKO_CHECK(entry.state == State::kReserved);
  if (!by_name_.emplace(name, snapshot.index_).second) {
    entry.state = State::kDropped;
    return false;
  }
  entry.state = State::kPublished;
  entry.name = name;
  entry.tail_start = tail_start;
  entry.place = recency_.insert(recency_.end(), snapshot.index_);
  return true;
}

void SnapshotStore::Drop(const PageHash& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  const int32_t snapshot = found->second;
  Entry& entry = entries_[static_cast<size_t>(snapshot)];
  by_name_.erase(found);
  recency_.erase(entry.place);
  entry.state = State::kDropped;
  if (entry.holders == 0) {
    entry.state = State::kFree;
    free_.push_back(snapshot);
  }
}

void SnapshotStore::Release(int32_t snapshot) {
  Entry& entry = entries_[static_cast<size_t>(snapshot)];
  SENKO_CHECK(entry.holders > 0);
  if (--entry.holders > 0 || entry.state == State::kPublished) return;
  entry.state = State::kFree;  // dropped, or reserved and never published
  free_.push_back(snapshot);
}

}  // namespace senko::cache
