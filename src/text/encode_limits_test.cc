// A long text is read no further than it is wanted, and cut in slices that change nothing.
#include <gtest/gtest.h>

#include "text/prompt.h"
#include "text/special_tokens.h"
#include "text/test_growth.h"
#include "text/test_support.h"
#include "text/tokenizer.h"

namespace senko::text {
namespace {

constexpr size_t kLong = size_t{1} << 19;
constexpr size_t kPiece = 4096;  // more than what may come of one word of ordinary text

// Prose, words without a break, single characters, added tokens.
const char* const kUnits[] = {"the quick brown fox, 12 times; ", "a", "1", "\n", "東", "<think>", "<", "\xFF"};

TEST(EncodeLimits, MaxIdsGivesTheBeginning) {
  for (const std::string unit : kUnits) {
    const std::string text = unit == "a" ? Repeated("ab cd ", kLong) : Repeated(unit, kLong);
    for (const AddedTokens added : {AddedTokens::kNone, AddedTokens::kAll}) {
      const std::vector<int32_t> all = Tiny().Encode(text, added);
      EXPECT_GE(all.size(), Tiny().LeastIds(text.size()));
      EXPECT_EQ(Tiny().Decode(all, false), Tiny().Decode(Tiny().Encode(text, AddedTokens::kNone), false));
      for (const size_t most : {size_t{0}, size_t{1}, size_t{5000}, all.size() - 1, all.size()}) {
        EncodeLimits limits;
        limits.max_ids = most;
        const std::vector<int32_t> some = Tiny().Encode(text, added, limits);
        if (most >= all.size()) {
          EXPECT_EQ(some, all);
          continue;
        }
        EXPECT_GT(some.size(), most) << unit;
        EXPECT_LE(some.size(), all.size());
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << unit;
        if (unit != "\n" && unit != "<" && unit != "\xFF" && unit != "東") {  // these are one word
          EXPECT_LE(some.size(), most + kPiece) << unit;
        }
      }
    }
  }
}

// Every few milliseconds of work somebody asks, and the work ends with the answer.
TEST(EncodeLimits, StopIsAskedNowAndThen) {
  for (const std::string unit : kUnits) {
    const std::string text = Repeated(unit, kLong);
    int asked = 0, most = INT_MAX;
    EncodeLimits limits;
    limits.stop = [&] { return ++asked >= most; };
    const std::vector<int32_t> all = Tiny().Encode(text, AddedTokens::kNone, limits);
    EXPECT_EQ(all, Tiny().Encode(text, AddedTokens::kNone));
    EXPECT_GE(asked, 5) << unit;
    for (const int stop : {1, 3}) {
      asked = 0;
      most = stop;
      EXPECT_LT(Tiny().Encode(text, AddedTokens::kNone, limits).size(), all.size()) << unit;
      EXPECT_EQ(asked, stop) << unit;
    }
  }
}

TEST(EncodeLimits, PromptsKeepThemToo) {
  Prompt prompt;
  for (int i = 0; i < 2000; ++i) {
    prompt.Control(kUserToken);
    prompt.Text("words number " + std::to_string(i));
  }
  prompt.Ids({5, 6, 7}, "x");
  const std::vector<int32_t> all = prompt.Encode(Tiny());
  EXPECT_GE(all.size(), prompt.LeastIds(Tiny()));
  EXPECT_GE(prompt.LeastIds(Tiny()), 4003u);
  EncodeLimits limits;
  limits.max_ids = 100;
  const std::vector<int32_t> some = prompt.Encode(Tiny(), limits);
  EXPECT_GT(some.size(), 100u);
  EXPECT_LT(some.size(), 200u);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  limits.max_ids = SIZE_MAX;
  int asked = 0;
  limits.stop = [&] { return ++asked > 0; };
  for (int i = 0; i < 5000; ++i) {
    prompt.Control(kUserToken);
    prompt.Text("words number " + std::to_string(i));
  }
  EXPECT_LT(prompt.Encode(Tiny(), limits).size(), prompt.Encode(Tiny()).size());
}

TEST(EncodeLimits, LeastIdsIsTrueOfTheLongestTokens) {
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    const std::string bytes(Tiny().TokenBytes(id));
    EXPECT_EQ(Tiny().LeastIds(bytes.size()), bytes.empty() ? 0u : 1u);
    EXPECT_LE(Tiny().LeastIds(100 * bytes.size()), 100u);
  }
  EXPECT_GT(Tiny().LeastIds(kLong), 100u);
}

}  // namespace
}  // namespace senko::text
