// The hand-written scanners against PCRE2 running the same patterns.
#include "text/splitter.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/test_support.h"
#include "text/unicode_class.h"

namespace senko::text {
namespace {

using Ends = std::vector<size_t>;

Ends Split(const Splitter& splitter, std::string_view text) {
  Ends ends;
  splitter.Split(text, 0, SIZE_MAX, &ends);
  for (const size_t most : {1, 2, 7}) {  // in slices it is the same
    Ends sliced, slice;
    for (size_t from = 0; from < text.size(); sliced.insert(sliced.end(), slice.begin(), slice.end())) {
      slice.clear();
      const size_t to = splitter.Split(text, from, most, &slice);
      EXPECT_TRUE(!slice.empty() && slice.size() <= most + 1 && to == slice.back() && to > from);
      if (to <= from) break;
      from = to;
    }
    EXPECT_EQ(sliced, ends) << most;
  }
  return ends;
}

// Characters whose classes the installed PCRE2 and our measured table agree on: its Unicode version may be
// older.
std::vector<std::string> AgreedCharacters(std::mt19937_64& rng) {
  const std::pair<const char*, unsigned> classes[] = {{"\\p{L}", kLetter}, {"\\p{M}", kMark},
                                                      {"\\p{N}", kNumber}, {"\\p{P}", kPunctuation},
                                                      {"\\p{S}", kSymbol}, {"\\s", kSpace}};
  std::vector<std::unique_ptr<Splitter>> splitters;
  for (const auto& [pattern, bits] : classes) {
    splitters.push_back(MakePcreSplitter(std::string("(?:") + pattern + ")(?=\x01)", pattern));
  }
  std::vector<std::string> agreed;
  const auto consider = [&](char32_t c) {
    std::string text;
    AppendUtf8(c, &text);
    for (size_t k = 0; k < splitters.size(); ++k) {
      const bool theirs = Split(*splitters[k], text + "\x01").size() == 2;
      if (theirs != ((ClassOf(c) & classes[k].second) != 0)) return;
    }
    agreed.push_back(text);
  };
  for (char32_t c = 0; c < 0x300; ++c) consider(c);
  for (int i = 0; i < 3000; ++i) consider(RandomCodePoint(rng));
  return agreed;
}

TEST(Splitter, ScannersEqualPcre) {
  std::mt19937_64 rng(2024);
  const std::vector<std::string> characters = AgreedCharacters(rng);
  ASSERT_GT(characters.size(), 3000u);
  const std::vector<std::string> frequent = {" ", " ", "\n", "\r", "\t",     "\r\n",   "a",    "Z", "9", "1", "!",
                                             ".", "$", "中", "ア", "\u0301", "\u3000", "\x01", "é", "٣", "—", "€"};
  for (const std::string_view pattern : {kNumberPattern, kCjkPattern, kWordPattern}) {
    const auto scanner = MakeKnownSplitter(pattern);
    ASSERT_NE(scanner, nullptr);
    const auto pcre = MakePcreSplitter(std::string(pattern), "pattern");
    for (int i = 0; i < 20000; ++i) {
      std::string text;
      const size_t length = rng() % 24;
      for (size_t k = 0; k < length; ++k) {
        const auto& pool = rng() % 3 ? frequent : characters;
        const std::string& unit = pool[rng() % pool.size()];
        for (size_t times = rng() % 4 ? 1 : rng() % 5; times > 0; --times) text += unit;
      }
      ASSERT_EQ(Split(*scanner, text), Split(*pcre, text)) << pattern << " on " << testing::PrintToString(text);
    }
  }
}

TEST(Splitter, UnknownPatternsRunThroughPcre) {
  EXPECT_EQ(MakeKnownSplitter("\\d+"), nullptr);
  EXPECT_EQ(Split(*MakePcreSplitter("\\d+", "f"), "ab12c"), (Ends{2, 4, 5}));
  EXPECT_EQ(Split(*MakePcreSplitter("x*", "f"), "axxb"), (Ends{1, 3, 4}));
  EXPECT_EQ(Split(*MakePcreSplitter("x", "f"), ""), Ends{});
  EXPECT_EQ(Split(*MakePcreSplitter("a", "f"), "\xFF\x61\xC3"), (Ends{1, 2, 3}));
  EXPECT_THROW(MakePcreSplitter("(", "f"), Error);
  // Exponential backtracking ends at the match limit, with the pattern's name.
  const auto greedy = MakePcreSplitter("(a+)+$", "the field");
  try {
    Split(*greedy, std::string(200, 'a') + "b");
    ADD_FAILURE() << "no limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_TRUE(std::string(error.what()).starts_with("the field")) << error.what();
  }
}

TEST(Splitter, EndsCoverAnyBytes) {
  std::mt19937_64 rng(3);
  for (const std::string_view pattern : {kNumberPattern, kCjkPattern, kWordPattern}) {
    const auto scanner = MakeKnownSplitter(pattern);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = RandomBytes(rng, 1 + rng() % 60);
      const Ends ends = Split(*scanner, text);
      ASSERT_FALSE(ends.empty());
      EXPECT_EQ(ends.back(), text.size());
      for (size_t k = 1; k < ends.size(); ++k) EXPECT_LT(ends[k - 1], ends[k]);
    }
  }
}

}  // namespace
}  // namespace senko::text
