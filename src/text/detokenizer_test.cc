#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/test_support.h"

namespace senko::text {
namespace {

std::string Whole(std::string_view bytes) {
  std::string out;
  Utf8Stream stream;
  stream.Push(bytes, &out);
  stream.Finish(&out);
  return out;
}

// Results of Python's bytes.decode("utf-8", "replace").
TEST(Utf8Stream, ReplacesMaximalPrefixes) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Whole("a\xE4\xB8\xAD z"), "a\xE4\xB8\xAD z");
  EXPECT_EQ(Whole("\xF0\x9F\x8C"), r);
  EXPECT_EQ(Whole("\xF0\x9F\x8Cx"), r + "x");
  EXPECT_EQ(Whole("\xF0\x80\x80"), r + r + r);
  EXPECT_EQ(Whole("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(Whole("\xC0\xAF"), r + r);
  EXPECT_EQ(Whole("\xE4\xC3\xA9"), r + "\xC3\xA9");
  EXPECT_EQ(Whole("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(Whole("\xF8\xFF\x80"), r + r + r);
  EXPECT_EQ(Whole("\xE4\xB8\xE4\xB8\xAD"), r + "\xE4\xB8\xAD");
}

TEST(Utf8Stream, CutsDoNotMatter) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = i % 2 ? RandomBytes(rng, rng() % 40) : RandomUtf8(rng, rng() % 20);
    if (!bytes.empty() && i % 3 == 0) bytes[rng() % bytes.size()] = static_cast<char>(rng());
    std::string out;
    Utf8Stream stream;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(bytes.size() - at, 1 + rng() % 4);
      std::string piece;
      stream.Push(std::string_view(bytes).substr(at, size), &piece);
      EXPECT_TRUE(IsWellFormed(piece));
      out += piece;
      at += size;
    }
    stream.Finish(&out);
    EXPECT_EQ(out, Whole(bytes));
    if (IsWellFormed(bytes)) {
      EXPECT_EQ(out, bytes);
    }
    EXPECT_FALSE(stream.holding());
  }
}

TEST(Detokenizer, StreamedEqualsWholeForAnyIds) {
  std::mt19937_64 rng(9);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(rng() % 40);
    for (auto& id : ids) id = static_cast<int32_t>(rng() % 512);
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(Tiny(), skip);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string piece = detokenizer.Push(id);
        EXPECT_TRUE(IsWellFormed(piece));
        joined += piece;
      }
      joined += detokenizer.Finish();
      EXPECT_EQ(joined, Tiny().Decode(ids, skip));
    }
  }
  Detokenizer detokenizer(Tiny());
  EXPECT_THROW(detokenizer.Push(512), Error);
  EXPECT_THROW(detokenizer.Push(-1), Error);
}

// A limit in the middle of an emoji: nothing until the character is whole, one U+FFFD if it never is.
TEST(Detokenizer, CharacterCutByTheEnd) {
  const auto ids = Tiny().Encode("\xF0\x9F\x8C\x8D", AddedTokens::kNone);
  ASSERT_EQ(ids.size(), 4u);
  for (size_t count = 1; count <= 4; ++count) {
    Detokenizer detokenizer(Tiny());
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      text += detokenizer.Push(ids[i]);
      EXPECT_EQ(text.empty(), i < 3);
    }
    EXPECT_EQ(text + detokenizer.Finish(), count == 4 ? "\xF0\x9F\x8C\x8D" : "\xEF\xBF\xBD");
  }
}

}  // namespace
}  // namespace senko::text
