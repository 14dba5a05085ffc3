// Properties over shrinking random input (rapidcheck).
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/test_support.h"
#include "text/turn_parser.h"

namespace senko::text {
namespace {

rc::Gen<std::string> Utf8Text() {
  const auto code_point = rc::gen::map(rc::gen::inRange<uint32_t>(0, 0x110000 - 0x800),
                                       [](uint32_t c) { return static_cast<char32_t>(c < 0xD800 ? c : c + 0x800); });
  const auto ascii =
      rc::gen::map(rc::gen::inRange<uint32_t>(0, 128), [](uint32_t c) { return static_cast<char32_t>(c); });
  return rc::gen::map(rc::gen::container<std::u32string>(rc::gen::oneOf(code_point, ascii)),
                      [](const std::u32string& s) {
                        std::string out;
                        for (const char32_t c : s) AppendUtf8(c, &out);
                        return out;
                      });
}

TEST(TextProperty, DecodeOfEncodeIsTheText) {
  EXPECT_TRUE(rc::check([] {
    const std::string text = *Utf8Text();
    for (const auto added : {AddedTokens::kNone, AddedTokens::kAll}) {
      const auto ids = Tiny().Encode(text, added);
      RC_ASSERT(Tiny().Decode(ids, false) == text);
      Detokenizer detokenizer(Tiny(), false);
      std::string streamed;
      for (const int32_t id : ids) streamed += detokenizer.Push(id);
      RC_ASSERT(streamed + detokenizer.Finish() == text);
    }
  }));
}

TEST(TextProperty, RenderedTurnsComeBack) {
  EXPECT_TRUE(rc::check([] {
    Message turn;
    turn.role = Role::kAssistant;
    turn.reasoning = *Utf8Text();
    turn.content = *Utf8Text();
    const auto names = *rc::gen::container<std::vector<std::string>>(Utf8Text());
    for (const auto& name : names) {
      const Json arguments = {{*Utf8Text(), *Utf8Text()}, {"n", *rc::gen::arbitrary<int64_t>()}};
      turn.tool_calls.push_back({"id", std::string("f").append(std::to_string(name.size())), arguments.dump()});
    }
    const AssistantTurn parsed = ParseTurn(RenderAssistantTurn(turn, true).ToString(), TurnStart::kReasoning);
    RC_ASSERT(parsed.reasoning == turn.reasoning);
    RC_ASSERT(parsed.content == turn.content);
    RC_ASSERT(parsed.tool_calls.size() == turn.tool_calls.size());
    for (size_t i = 0; i < parsed.tool_calls.size(); ++i) {
      RC_ASSERT(parsed.tool_calls[i].name == turn.tool_calls[i].name);
      RC_ASSERT(Json::parse(parsed.tool_calls[i].arguments) == Json::parse(turn.tool_calls[i].arguments));
    }
    RC_ASSERT(!parsed.malformed);
  }));
}

}  // namespace
}  // namespace senko::text
