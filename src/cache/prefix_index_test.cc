#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "cache/page_hash.h"
#include "cache/page_pool.h"

namespace senko::cache {
namespace {

config::PageLayout SmallPage() {
  config::PageLayout layout;
  layout.block_size = 64;
  layout.page_bytes = 256;
  return layout;
}

std::vector<PageHash> Names(PageHasher& hasher, const std::vector<int32_t>& ids, size_t page, std::string_view salt) {
  std::vector<PageHash> names;
  PageHash name = hasher.Root(salt);
  for (size_t at = 0; at + page <= ids.size(); at += page) {
    name = hasher.Next(name, std::span(ids).subspan(at, page));
    names.push_back(name);
  }
  return names;
}

TEST(PageHash, NamesDependOnEverythingBefore) {
  PageHasher hasher("model A"), other("model B");
  const std::vector<int32_t> a = {1, 2, 3, 4}, b = {1, 2, 3, 5}, c = {9, 2, 3, 4};
  const auto names = Names(hasher, a, 2, "");
  EXPECT_EQ(names, Names(hasher, a, 2, ""));
  EXPECT_EQ(names[0], Names(hasher, b, 2, "")[0]);
  EXPECT_NE(names[1], Names(hasher, b, 2, "")[1]);
  EXPECT_NE(names[1], Names(hasher, c, 2, "")[1]);  // same page, other past
  EXPECT_NE(names[0], Names(hasher, a, 2, "salt")[0]);
  EXPECT_NE(names[0], Names(other, a, 2, "")[0]);
}

TEST(PageHash, IsTheSha256Chain) {
  // Python: f = sha256(b"senko prefix" + b"m").digest(); s = sha256(b"senko salt" + b"x").digest();
  // sha256(sha256(f + s).digest() + struct.pack("<2i", 1, -2)).hexdigest()
  PageHasher hasher("m");
  const std::vector<int32_t> ids = {1, -2};
  const PageHash name = hasher.Next(hasher.Root("x"), ids);
  std::string hex;
  for (uint8_t byte : name.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    hex += digits;
  }
  EXPECT_EQ(hex, "33c977547102c17716cf914d65267fcf8308b47c79394d3b21fd0f75cb772228");
}

TEST(PrefixIndex, FindsTheLongestRunAndForgetsTheLeastRecentlyUsed) {
  PagePool pool(SmallPage(), 3);
  PrefixIndex index(pool);
  PageHasher hasher("m");
  const auto names = Names(hasher, {1, 2, 3, 4, 5, 6, 7, 8}, 2, "");
  std::vector<PageRef> pages;
  for (int i = 0; i < 3; ++i) {
    pages.push_back(std::move(*pool.Allocate()));
    EXPECT_TRUE(index.Insert(names[static_cast<size_t>(i)], pages.back().index()));
  }
  EXPECT_FALSE(pool.Allocate());
  EXPECT_EQ(index.Match(names), 3);
  // Released last page first, so that the beginning of the prefix lives longest.
  while (!pages.empty()) pages.pop_back();
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_EQ(pool.remembered_free_pages(), 3);
  EXPECT_EQ(index.Match(names), 3);
  auto taken = pool.Allocate();
  EXPECT_EQ(index.Match(names), 2);
  EXPECT_EQ(index.size(), 2);
  auto adopted = index.Adopt(std::span(names).first(2));
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_FALSE(pool.Allocate());
  EXPECT_EQ(pool.references(adopted[0].index()), 1);
  {
    auto again = index.Adopt(std::span(names).first(1));
    EXPECT_EQ(pool.references(adopted[0].index()), 2);
  }
  adopted.clear();
  EXPECT_TRUE(index.Contains(names[0]));
  index.Remove(names[0]);
  index.Remove(names[2]);  // long gone
  EXPECT_FALSE(index.Contains(names[0]));
  EXPECT_TRUE(index.Contains(names[1]));
  EXPECT_EQ(index.Match(names), 0);
  EXPECT_EQ(index.size(), 1);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.remembered_free_pages(), 1);
  auto used = index.Adopt(std::span(names).subspan(1, 1));
  index.Remove(names[1]);  // its owner keeps it
  EXPECT_EQ(pool.references(used[0].index()), 1);
  used.clear();
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.remembered_free_pages(), 0);
}

TEST(PrefixIndex, TheFirstPageOfANameStays) {
  PagePool pool(SmallPage(), 2);
  PrefixIndex index(pool);
  PageHasher hasher("m");
  const auto names = Names(hasher, {1, 2}, 2, "");
  auto first = pool.Allocate(), second = pool.Allocate();
  const int32_t kept = first->index();
  EXPECT_TRUE(index.Insert(names[0], first->index()));
  EXPECT_FALSE(index.Insert(names[0], second->index()));
  second.reset();
  first.reset();
  EXPECT_EQ(pool.remembered_free_pages(), 1);
  EXPECT_EQ(index.Adopt(names)[0].index(), kept);
}

// Random traffic against a map of what every page holds: a name never leads to a page with other content, references
// balance, and no page is lost.
TEST(PrefixIndex, RandomTrafficNeverFindsAnotherContent) {
  std::mt19937 random(7);
  PagePool pool(SmallPage(), 24);
  PrefixIndex index(pool);
  PageHasher hasher("m");
  std::map<int32_t, std::vector<int32_t>> content;  // page -> ids of the whole prefix up to its end
  struct Sequence {
    std::vector<int32_t> ids;
    std::vector<PageRef> pages;
  };
  std::vector<Sequence> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.size() < 5 && random() % 2 == 0) {
      Sequence s;
      const size_t length = 2 * (1 + random() % 6);
      for (size_t i = 0; i < length; ++i) s.ids.push_back(static_cast<int32_t>(random() % 2));
      const auto names = Names(hasher, s.ids, 2, "");
      const int64_t hit = index.Match(names);
      s.pages = index.Adopt(std::span(names).first(static_cast<size_t>(hit)));
      for (int64_t p = 0; p < hit; ++p) {
        const std::vector<int32_t> prefix(s.ids.begin(), s.ids.begin() + 2 * (p + 1));
        ASSERT_EQ(content.at(s.pages[static_cast<size_t>(p)].index()), prefix);
      }
      while (s.pages.size() < names.size()) {
        auto page = pool.Allocate();
        if (!page) break;
        const size_t p = s.pages.size();
        content[page->index()] = {s.ids.begin(), s.ids.begin() + static_cast<int64_t>(2 * (p + 1))};
        s.pages.push_back(std::move(*page));
        index.Insert(names[p], s.pages.back().index());
      }
      live.push_back(std::move(s));
    } else if (!live.empty()) {
      const size_t victim = random() % live.size();
      while (!live[victim].pages.empty()) live[victim].pages.pop_back();
      live.erase(live.begin() + static_cast<int64_t>(victim));
    }
    int64_t referenced = 0;
    for (int32_t p = 0; p < pool.num_pages(); ++p) referenced += pool.references(p) > 0;
    ASSERT_EQ(referenced + pool.free_pages(), pool.num_pages());
    ASSERT_LE(index.size(), pool.num_pages());
  }
}

}  // namespace
}  // namespace senko::cache
