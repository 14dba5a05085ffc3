// MergeWord against a loop that looks for the best pair from scratch after every merge.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace senko::text {
namespace {

using Symbols = std::vector<int32_t>;
using Rules = std::map<std::pair<int32_t, int32_t>, MergeTable::Merge>;

Symbols Reference(const Rules& rules, Symbols symbols) {
  for (;;) {
    size_t best = symbols.size();
    MergeTable::Merge merge;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = rules.find({symbols[i], symbols[i + 1]});
      if (found == rules.end() || (merge.rank >= 0 && found->second.rank >= merge.rank)) continue;
      best = i;
      merge = found->second;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = merge.merged;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// As in a vocabulary, equal strings are one symbol, so different pairs may make the same one.
TEST(Bpe, EqualsReference) {
  std::mt19937_64 rng(77);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> strings = {"a", "b", "c"};
    std::map<std::string, int32_t> ids = {{"a", 0}, {"b", 1}, {"c", 2}};
    Rules rules;
    MergeTable table(200);
    for (int32_t rank = 0; rank < 200; ++rank) {
      const auto left = static_cast<int32_t>(rng() % strings.size()),
                 right = static_cast<int32_t>(rng() % strings.size());
      if (rules.count({left, right}) != 0 || strings[left].size() + strings[right].size() > 12) continue;
      const std::string joined = strings[left] + strings[right];
      const auto [at, added] = ids.emplace(joined, static_cast<int32_t>(strings.size()));
      if (added) strings.push_back(joined);
      rules[{left, right}] = {rank, at->second};
      table.Set(left, right, {rank, at->second});
    }
    for (int word = 0; word < 60; ++word) {
      Symbols symbols(rng() % (word % 2 ? 30 : 200));
      for (auto& symbol : symbols) symbol = static_cast<int32_t>(rng() % (word % 3 ? 3 : 1));
      const Symbols want = Reference(rules, symbols);
      MergeWord(table, &symbols);
      ASSERT_EQ(symbols, want);
    }
  }
}

TEST(Bpe, LaterRankReplacesEarlier) {
  MergeTable table(2);
  table.Set(1, 2, {0, 3});
  table.Set(1, 2, {5, 4});
  EXPECT_EQ(table.Find(1, 2).rank, 5);
  EXPECT_EQ(table.Find(1, 2).merged, 4);
  EXPECT_EQ(table.Find(2, 1).rank, -1);
}

}  // namespace
}  // namespace senko::text
