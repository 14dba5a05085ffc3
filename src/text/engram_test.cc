#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "base/sha256.h"
#include "text/engram_fold.h"
#include "text/engram_fold_table.h"
#include "text/engram_map.h"
#include "text/test_support.h"

namespace senko::text {
namespace {

// The digest is over the measured result of the `tokenizers` package's normalisers for every code point that
// they change (the whole chain, text of that one code point), so one wrong code point fails.
TEST(EngramFold, EveryCodePointAsMeasured) {
  std::string listing;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    const std::string folded = EngramFold(text);
    if (folded == text && c != ' ') continue;
    if (c == ' ') {  // unchanged, and not in the list of changes
      EXPECT_EQ(folded, " ");
      continue;
    }
    char number[16];
    std::snprintf(number, sizeof(number), "%x:", static_cast<unsigned>(c));
    listing += number;
    for (size_t at = 0; at < folded.size();) {
      const CodePoint part = DecodeUtf8(folded, at);
      std::snprintf(number, sizeof(number), at == 0 ? "%x" : ",%x", static_cast<unsigned>(part.value));
      listing += number;
      at += part.size_bytes;
    }
    listing += ';';
  }
  EXPECT_EQ(Hex(Sha256(listing)), kFoldDigest);
}

TEST(EngramFold, Strings) {
  EXPECT_EQ(EngramFold("  Ünï \t\r\n Code  "), "uni code");
  EXPECT_EQ(EngramFold(" "), " ");
  EXPECT_EQ(EngramFold("\t \n"), " ");
  EXPECT_EQ(EngramFold("\u00A0\u00A0"), " ");
  EXPECT_EQ(EngramFold("\x0B"), "");
  EXPECT_EQ(EngramFold("\u0301"), "");
  EXPECT_EQ(EngramFold("ΣΑΣ"), "σασ");
  EXPECT_EQ(EngramFold("ﬁ"), "fi");
  EXPECT_EQ(EngramFold(""), "");
}

TEST(EngramMap, ReleasedTokenizerHas99092) {
  if (!std::filesystem::exists(V41Path())) GTEST_SKIP() << "no released tokenizer at " << V41Path();
  const auto map = MakeEngramMap(Tokenizer::FromFile(V41Path()));
  EXPECT_EQ(map.size(), 129280u);
  EXPECT_EQ(CompressedVocabSize(map), 99092);
}

TEST(EngramMap, IdsInOrderOfFirstAppearance) {
  const auto map = MakeEngramMap(Tiny());
  ASSERT_EQ(map.size(), 512u);
  int32_t next = 0;
  for (const int32_t id : map) {
    ASSERT_LE(id, next);
    next = std::max(next, id + 1);
  }
  const auto of = [&](const char* text) {
    const auto ids = Tiny().Encode(text, AddedTokens::kNone);
    EXPECT_EQ(ids.size(), 1u) << text;
    return map[ids[0]];
  };
  EXPECT_EQ(of("T"), of("t"));
  EXPECT_EQ(of(" t"), of("t"));
  EXPECT_NE(of("a"), of("b"));
  EXPECT_EQ(of(" "), of("\n"));
}

class EngramFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("senko_engram_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "model");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::filesystem::path& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string Message(const std::string& text) {
    Write("bad.json", text);
    try {
      ReadEngramMap(folder_ / "bad.json", 3, 10);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  std::filesystem::path folder_;
};

TEST_F(EngramFiles, RefusesBadFiles) {
  Write("good.json", "[0, 9, 3]");
  EXPECT_EQ(ReadEngramMap(folder_ / "good.json", 3, 10), (std::vector<int32_t>{0, 9, 3}));
  EXPECT_NE(Message("[0, 1]").find("it has 2"), std::string::npos);
  EXPECT_NE(Message("{}").find("must be a list of 3"), std::string::npos);
  EXPECT_NE(Message("[0, 10, 1]").find("entry 1 must be an integer in [0, 10)"), std::string::npos);
  EXPECT_NE(Message("[0, 1, -1]").find("entry 2"), std::string::npos);
  EXPECT_NE(Message("[0.5, 1, 1]").find("entry 0"), std::string::npos);
  EXPECT_NE(Message("[0, 1").find("byte"), std::string::npos);
  EXPECT_THROW(ReadEngramMap(folder_ / "absent.json", 3, 10), Error);
}

TEST_F(EngramFiles, MakesCachesAndOverrides) {
  const auto fresh = MakeEngramMap(Tiny());
  const int32_t size = CompressedVocabSize(fresh);
  EXPECT_EQ(LoadEngramMap(Tiny(), folder_ / "model", folder_ / "cache", size), fresh);
  std::filesystem::path cached;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) cached = entry.path();
  ASSERT_NE(cached.string().find(Tiny().sha256()), std::string::npos);

  auto marked = fresh;
  marked[7] = 0;
  WriteEngramMap(cached, marked);
  EXPECT_EQ(LoadEngramMap(Tiny(), folder_ / "model", folder_ / "cache", size), marked) << "the cache was not read";
  std::ofstream(cached) << "damaged";
  EXPECT_EQ(LoadEngramMap(Tiny(), folder_ / "model", folder_ / "cache", size), fresh);
  EXPECT_EQ(ReadEngramMap(cached, 512, size), fresh) << "the damaged cache was not replaced";
  EXPECT_EQ(LoadEngramMap(Tiny(), folder_ / "model", "", size), fresh);
  EXPECT_EQ(LoadEngramMap(Tiny(), folder_ / "model", "/proc/nowhere", size), fresh);
  EXPECT_THROW(LoadEngramMap(Tiny(), folder_ / "model", "", size + 1), Error);

  WriteEngramMap(folder_ / "model" / "engram_map.json", marked);
  EXPECT_EQ(LoadEngramMap(Tiny(), folder_ / "model", folder_ / "cache", size), marked);
  Write("model/engram_map.json", "[1]");
  EXPECT_THROW(LoadEngramMap(Tiny(), folder_ / "model", folder_ / "cache", size), Error);
}

}  // namespace
}  // namespace senko::text
