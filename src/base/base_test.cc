#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/thread_pool.h"

namespace senko {
namespace {

ErrorCode CodeOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error thrown";
  return ErrorCode::kIo;
}

TEST(Sha256, PublishedDigests) {  // FIPS 180-4's examples
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Json, RefusesWhatAStrangerMaySend) {
  EXPECT_EQ(CodeOf([] { ParseJson("{\"a\":1,\"a\":2}", "t"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf([] { ParseJson("{} x", "t"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf([] { ParseJson("\"\xff\"", "t"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf([] { ParseJson("", "t"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf([] { ParseJson(std::string(1000000, '['), "t"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf([] { ParseJson("[1,2,3]", "t", {.max_bytes = 3}); }), ErrorCode::kResourceExhausted);
}

TEST(Json, NamesSourceAndByte) {
  try {
    ParseJson("{\"a\": nope}", "config.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("config.json: invalid JSON at byte"), std::string::npos) << e.what();
  }
}

TEST(Json, DumpNeverThrows) { EXPECT_EQ(DumpJson(Json("a\xff")), "\"a\xEF\xBF\xBD\""); }

TEST(Philox, KnownAnswers) {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  const Philox zero = PhiloxDraw(0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const Philox ones = PhiloxDraw(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(ThreadPool, CoversTheRangeOnce) {
  ThreadPool pool(4);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::atomic<int>> hits(1003);
    pool.ParallelFor(1003, 7, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, 4);
      for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)]++;
    });
    for (auto& h : hits) ASSERT_EQ(h.load(), 1);
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.ParallelFor(100, 1,
                                [](int64_t i, int64_t, int) {
                                  if (i == 37) throw Error(ErrorCode::kCorrupt, "x");
                                }),
               Error);
  std::atomic<int64_t> sum{0};
  pool.ParallelFor(10, 1, [&](int64_t b, int64_t e, int) {
    for (; b < e; ++b) sum += b;
  });
  EXPECT_EQ(sum.load(), 45);
}

TEST(MappedFile, MapsAndReports) {
  const auto path = std::filesystem::temp_directory_path() / "senko_mapped_file_test";
  { std::ofstream(path) << "hello"; }
  MappedFile file = MappedFile::Open(path);
  ASSERT_EQ(file.bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(file.bytes()[4]), 'o');
  EXPECT_EQ(CodeOf([&] { ReadTextFile(path, 4); }), ErrorCode::kResourceExhausted);
  EXPECT_EQ(CodeOf([&] { MappedFile::Open(path.string() + ".missing"); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { MappedFile::Open(path.parent_path()); }), ErrorCode::kInvalidArgument);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace senko
