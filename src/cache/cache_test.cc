#include <gtest/gtest.h>

#include <vector>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"

namespace senko::cache {
namespace {

config::PageLayout SmallPage() {
  config::PageLayout layout;
  layout.block_size = 64;
  layout.page_bytes = 4096;
  return layout;
}

TEST(PagePool, CountsReferencesAndReusesPages) {
  PagePool pool(SmallPage(), 2);
  auto a = pool.Allocate();
  auto b = pool.Allocate();
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(pool.Allocate());
  EXPECT_NE(a->index(), b->index());
  const int32_t first = a->index();
  PageRef shared = a->Share();
  EXPECT_EQ(pool.references(first), 2);
  a.reset();
  EXPECT_EQ(pool.free_pages(), 0);
  shared = PageRef();
  EXPECT_EQ(pool.free_pages(), 1);
  auto again = pool.Allocate();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->index(), first);
}

TEST(PagePool, CountsPagesOfAModelWithoutGlobalKv) {
  config::PageLayout layout = SmallPage();
  layout.page_bytes = 0;
  PagePool pool(layout, 2);
  auto page = pool.Allocate();
  ASSERT_TRUE(page);
  EXPECT_EQ(pool.free_pages(), 1);
}

TEST(PagePool, MovesDoNotDoubleFree) {
  PagePool pool(SmallPage(), 3);
  {
    std::vector<PageRef> table;
    for (int i = 0; i < 3; ++i) table.push_back(std::move(*pool.Allocate()));
    std::vector<PageRef> moved = std::move(table);
    EXPECT_EQ(pool.free_pages(), 0);
  }
  EXPECT_EQ(pool.free_pages(), 3);
}

TEST(SlotPool, HandsOutDistinctSlotsAndTakesThemBack) {
  config::SlotLayout layout;
  layout.slot_bytes = 1024;
  SlotPool pool(layout, 2);
  {
    auto a = pool.Allocate();
    auto b = pool.Allocate();
    ASSERT_TRUE(a && b);
    EXPECT_NE(a->data(), b->data());
    EXPECT_FALSE(pool.Allocate());
#ifndef NDEBUG
    EXPECT_EQ(a->data()[17], 0xFF);
#endif
  }
  EXPECT_EQ(pool.free_slots(), 2);
}

}  // namespace
}  // namespace senko::cache
