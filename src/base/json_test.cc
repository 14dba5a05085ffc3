#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "base/error.h"

namespace senko {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const std::string& text, const JsonLimits& limits, ErrorCode* code) {
  try {
    ParseJson(text, "call.json", limits);
  } catch (const Error& error) {
    *code = error.code();
    return error.what();
  }
  return "accepted";
}

std::string ObjectOf(int keys, const std::string& last) {
  std::string text = "{";
  for (int i = 0; i < keys; ++i) text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  return text + last + "}";
}

TEST(JsonKeys, OneObjectHasAtMostSoMany) {
  ErrorCode code{};
  EXPECT_EQ(Refusal(ObjectOf(4095, "\"last\":1"), {}, &code), "accepted");
  EXPECT_THAT(Refusal(ObjectOf(4096, "\"last\":1"), {}, &code),
              AllOf(HasSubstr("call.json"), HasSubstr("more than 4096 keys")));
  EXPECT_EQ(code, ErrorCode::kResourceExhausted);
  // Refused where the limit is passed, before what follows is read.
  EXPECT_THAT(Refusal(ObjectOf(3, "nonsense"), {.max_keys = 2}, &code), HasSubstr("more than 2 keys"));
  EXPECT_THAT(Refusal("[{\"a\":1,\"b\":{\"c\":1,\"d\":2,\"e\":3}}]", {.max_keys = 2}, &code), HasSubstr("more than 2"));
  EXPECT_EQ(Refusal("[{\"a\":1,\"b\":{\"c\":1,\"d\":2}},{\"e\":1,\"f\":2}]", {.max_keys = 2}, &code), "accepted");
  EXPECT_THAT(Refusal(ObjectOf(4096, "\"k7\":1"), {}, &code), HasSubstr("duplicate key \"k7\""));
}

TEST(JsonKeys, DepthIsStillBounded) {
  ErrorCode code{};
  EXPECT_EQ(Refusal("{\"a\":[1]}", {.max_depth = 2}, &code), "accepted");
  EXPECT_THAT(Refusal("{\"a\":[[1]]}", {.max_depth = 2}, &code), HasSubstr("nested deeper than 2"));
  EXPECT_EQ(code, ErrorCode::kCorrupt);
}

TEST(JsonValues, OneTextHasAtMostSoMany) {
  ErrorCode code{};
  EXPECT_EQ(Refusal("[1,{\"a\":\"b\"},[]]", {.max_values = 5}, &code), "accepted");
  // Every kind of value counts, where it begins; what follows the limit is not read.
  for (const char* last : {"1", "-1", "1.5", "null", "true", "\"\"", "[", "{"}) {
    EXPECT_THAT(Refusal("[1,{\"a\":\"b\"},[]," + std::string(last) + ",nonsense", {.max_values = 5}, &code),
                AllOf(HasSubstr("call.json"), HasSubstr("more than 5 values")));
    EXPECT_EQ(code, ErrorCode::kResourceExhausted);
  }
  std::string ids = "[0";
  for (int i = 1; i < 1'048'576; ++i) ids += ",129279";
  EXPECT_EQ(Refusal("{\"prompt\":" + ids + "],\"model\":\"m\"}", {}, &code), "accepted");
  for (int i = 0; i < 1'048'576; ++i) ids += ",1";
  EXPECT_THAT(Refusal("{\"prompt\":" + ids + "]}", {}, &code), HasSubstr("more than 2097152 values"));
}

TEST(JsonErrors, KnowTheMemberAtFault) {
  const auto member = [](const std::string& text) -> std::string {
    try {
      ParseJson(text, "t", {.max_keys = 3, .max_values = 6});
    } catch (const JsonError& error) {
      return error.member();
    }
    return "accepted";
  };
  EXPECT_EQ(member("{\"a\":1,\"b\":[1,1,1,1,1],\"c\":2}"), "b");
  EXPECT_EQ(member("{\"a\":1,\"b\":{\"x\":1,\"x\":1},\"c\":2}"), "b");
  EXPECT_EQ(member("{\"a\":1,\"a\":2,\"c\":2}"), "a");
  EXPECT_EQ(member("{\"a\":1,\"b\":nonsense,\"c\":2}"), "b");
  EXPECT_EQ(member("[1,1,1,1,1,1,1]"), "");
  EXPECT_EQ(member("{\"a\":1}"), "accepted");
}

// A random value as text, spelled in ways that a serialiser would not choose.
std::string RandomText(std::mt19937& random, int depth) {
  static const char* const kScalars[] = {"null",
                                         "true",
                                         "false",
                                         "0",
                                         "-7",
                                         "18446744073709551615",
                                         "-9223372036854775808",
                                         "1.5e-3",
                                         "-0.0",
                                         "1E2",
                                         "\"\\u00e9\\n\"",
                                         "\"\"",
                                         "\"\\ud83d\\ude00 x\""};
  const unsigned kind = random() % (depth > 0 ? 4 : 2);
  if (kind < 2) return kScalars[random() % std::size(kScalars)];
  std::string text = kind == 2 ? "[" : "{";
  const unsigned count = random() % 5;
  for (unsigned i = 0; i < count; ++i) {
    if (i > 0) text += " ,\n";
    if (kind == 3) text += "\"" + std::to_string(random() % 1000) + "-" + std::to_string(i) + "\" : ";
    text += RandomText(random, depth - 1);
  }
  return text + (kind == 2 ? " ]" : "\t}");
}

TEST(JsonKeys, BuildsWhatTheLibraryBuilds) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = RandomText(random, 5);
    const Json got = ParseJson(text, "t"), want = Json::parse(text);
    ASSERT_EQ(got, want) << text << " seed " << seed;
    ASSERT_EQ(DumpJson(got), want.dump()) << text << " seed " << seed;  // also the order and the kinds of numbers
  }
}

}  // namespace
}  // namespace senko
