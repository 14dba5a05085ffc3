#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace senko::text {
namespace {

struct Result {
  std::string out, stop;
  bool operator==(const Result&) const = default;
};

// The definition, by looking at every end.
Result Expected(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      const bool ends = stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

TEST(StopMatcher, RandomTextsCutAnywhere) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  const auto word = [&](size_t most) {
    std::string out;
    for (size_t n = rng() % (most + 1); n > 0; --n) out += "ab"[rng() % 2];
    return out;
  };
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = word(16);
    std::vector<std::string> stops;
    for (size_t n = rng() % 4; n > 0; --n) stops.push_back(word(5));
    StopMatcher matcher(stops);
    Result seen;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min(text.size() - at, size_t{1 + rng() % 5});
      seen.out += matcher.Push(text.substr(at, size));
      at += size;
    }
    seen.out += matcher.Finish();
    if (matcher.stopped()) seen.stop = matcher.stop();
    stopped += matcher.stopped();
    std::erase(stops, std::string());
    ASSERT_EQ(seen, Expected(text, stops)) << text;
  }
  EXPECT_GT(stopped, 1000);
}

TEST(StopMatcher, HoldsBackNoMoreThanItMust) {
  StopMatcher matcher({"abac", "xy"});
  EXPECT_EQ(matcher.Push("1ab"), "1");
  EXPECT_EQ(matcher.Push("ab"), "ab");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_EQ(matcher.Push("x"), "ab");
  EXPECT_EQ(matcher.Finish(), "x");
}

TEST(StopMatcher, LinearWhateverTheStop) {
  const std::string many(4000, 'a');
  StopMatcher matcher({many + "b", many + "c"});
  std::string out;
  for (int i = 0; i < 200000; ++i) out += matcher.Push("a");
  out += matcher.Finish();
  EXPECT_EQ(out.size(), 200000u);
}

}  // namespace
}  // namespace senko::text
