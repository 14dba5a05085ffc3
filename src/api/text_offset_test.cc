// text_offset: where each token's first byte lies in the text, whatever bytes the tokens have.
#include <gtest/gtest.h>

#include <random>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/completions";

// The place of every byte's character, by a decoder that is fed byte by byte; a token without bytes stands where the
// next character would.
std::vector<int64_t> Expected(const std::vector<std::string>& texts) {
  std::vector<int64_t> offsets;
  std::string out;
  text::Utf8Stream stream;
  const auto characters = [&] {
    int64_t count = 0;
    for (const char c : out) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return count;
  };
  for (const std::string& text : texts) {
    int64_t at = characters();
    if (!text.empty() && stream.holding()) {
      // Only what does not fit ends the character that was begun.
      text::Utf8Stream copy = stream;
      std::string first;
      copy.Push(text.substr(0, 1), &first);
      if (first.starts_with("\xEF\xBF\xBD") && (copy.holding() || first.size() > 3)) ++at;
    }
    offsets.push_back(at);
    stream.Push(text, &out);
  }
  return offsets;
}

TEST(TextOffset, IsWhereTheFirstByteLies) {
  const std::vector<std::string> steps = {"a",
                                          "é",
                                          "🌍",
                                          "\x80",
                                          "\xF0\x9F",
                                          "\x8C\x8D",
                                          "\xE2",
                                          "\xC3",
                                          "\xA9"
                                          "b",
                                          "\xFF",
                                          "ab",
                                          "\x80\x80",
                                          "b\xF0",
                                          "\x9F\x8C"};
  TestApi api(steps);
  std::mt19937_64 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids;
    std::vector<std::string> texts;
    for (size_t i = 1 + rng() % 12; i > 0; --i) {
      const size_t which = rng() % (steps.size() + 2);
      if (which >= steps.size()) {
        ids.push_back(0);  // special: no text
        texts.emplace_back();
      } else {
        ids.push_back(kFirstStep + static_cast<int32_t>(which));
        texts.push_back(steps[which]);
      }
    }
    api.Say(ids, 1 + rng() % 3);
    Json body = {{"prompt", "x"}, {"max_tokens", 40}, {"logprobs", 0}};
    const Seen whole = CompletionWholeSeen(*api.Post(kPath, body)).choices.at(0);
    const Json offsets = whole.logprobs.at("text_offset");
    std::vector<int64_t> got = offsets.get<std::vector<int64_t>>();
    int64_t length = 0;
    for (const char c : whole.content) length += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    EXPECT_TRUE(std::is_sorted(got.begin(), got.end())) << offsets;
    for (const int64_t at : got) EXPECT_LE(at, length) << offsets;
    ASSERT_GE(got.size(), texts.size());
    got.resize(texts.size());
    EXPECT_EQ(got, Expected(texts)) << DumpJson(Json(whole.content));
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    EXPECT_EQ(CompletionStreamSeen(*api.Post(kPath, body)).choices.at(0).logprobs.at("text_offset"), offsets);
  }
}

// The answer's text begins anew: nothing goes on with a character that the prompt has not completed.
TEST(TextOffset, ThePromptsTextEndsWithIt) {
  TestApi api;
  api.Say({TestApi::Bytes("\x8C")[0], TestApi::Bytes("b")[0]});
  Json body = {{"prompt", {TestApi::Bytes("\xF0")[0], TestApi::Bytes("\x9F")[0]}}, {"echo", true}, {"logprobs", 0}};
  const Seen whole = CompletionWholeSeen(*api.Post(kPath, body)).choices.at(0);
  EXPECT_EQ(whole.content,
            "\uFFFD\uFFFD"
            "b");
  EXPECT_EQ(whole.logprobs.at("text_offset"), (Json{0, 0, 1, 2}));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  EXPECT_EQ(CompletionStreamSeen(*api.Post(kPath, body)).choices.at(0).logprobs.at("text_offset"),
            whole.logprobs.at("text_offset"));
}

}  // namespace
}  // namespace senko::api
