#include "cache/snapshot_store.h"

#include <gtest/gtest.h>

namespace senko::cache {
namespace {

config::SlotLayout SmallSlot() {
  config::SlotLayout layout;
  layout.slot_bytes = 512;
  return layout;
}

PageHash Name(uint8_t n) {
  PageHash name;
  name.bytes[0] = n;
  return name;
}

void Store(SnapshotStore& store, uint8_t n) {
  SnapshotRef ref = store.Reserve();
  ASSERT_TRUE(ref);
  store.data(ref.index())[0] = n;
  store.Publish(ref, Name(n), n);
}

TEST(SnapshotStore, KeepsToItsBudgetAndReplacesTheLeastRecentlyUsed) {
  SnapshotStore store(SmallSlot(), 2 * 512 + 511);
  ASSERT_EQ(store.capacity(), 2);
  Store(store, 1);
  Store(store, 2);
  EXPECT_TRUE(store.Find(Name(1)));  // now 2 is the older one
  Store(store, 3);
  EXPECT_TRUE(store.Contains(Name(1)));
  EXPECT_FALSE(store.Contains(Name(2)));
  EXPECT_EQ(store.data(store.Find(Name(3)).index())[0], 3);
  EXPECT_EQ(store.tail_start(store.Find(Name(3))), 3);
}

TEST(SnapshotStore, WhatIsHeldIsNotReplaced) {
  SnapshotStore store(SmallSlot(), 512);
  Store(store, 1);
  SnapshotRef reading = store.Find(Name(1));
  EXPECT_FALSE(store.Reserve());
  store.Drop(Name(1));
  EXPECT_FALSE(store.Contains(Name(1)));
  EXPECT_FALSE(store.Reserve());  // still being read
  reading = SnapshotRef();
  EXPECT_TRUE(store.Reserve());
}

TEST(SnapshotStore, WhatWasNeverPublishedIsNotFoundAndComesBack) {
  SnapshotStore store(SmallSlot(), 512);
  {
    SnapshotRef writing = store.Reserve();
    EXPECT_FALSE(store.Find(Name(1)));
  }
  Store(store, 2);
  EXPECT_EQ(store.size(), 1);
}

TEST(SnapshotStore, TheFirstOfTwoWritersWins) {
  SnapshotStore store(SmallSlot(), 2 * 512);
  SnapshotRef a = store.Reserve(), b = store.Reserve();
  store.Publish(a, Name(1), 0);
  store.Publish(b, Name(1), 0);
  const int32_t first = a.index();
  a = SnapshotRef();
  b = SnapshotRef();
  EXPECT_EQ(store.Find(Name(1)).index(), first);
  EXPECT_EQ(store.size(), 1);
  Store(store, 2);
  EXPECT_EQ(store.size(), 2);
}

TEST(SnapshotStore, NoBudgetMeansNoSnapshots) {
  SnapshotStore store(SmallSlot(), 0);
  EXPECT_EQ(store.capacity(), 0);
  EXPECT_FALSE(store.Reserve());
}

}  // namespace
}  // namespace senko::cache
