#include "text/chat.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/special_tokens.h"
#include "text/test_support.h"

namespace senko::text {
namespace {

Message Of(Role role, std::string content) {
  Message message;
  message.role = role;
  message.content = std::move(content);
  return message;
}

Message Assistant(std::string reasoning, std::string content, std::vector<ToolCall> calls = {}) {
  Message message = Of(Role::kAssistant, std::move(content));
  message.reasoning = std::move(reasoning);
  message.tool_calls = std::move(calls);
  return message;
}

std::string Render(const Conversation& conversation, const ToolsPrompt* tools = nullptr) {
  return RenderConversation(conversation, tools).ToString();
}

const std::string kB = std::string(kBos);
const std::string kEffort75 =
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

TEST(Chat, ChatMode) {
  Conversation c;
  c.thinking = false;
  c.messages = {Of(Role::kUser, "hi")};
  EXPECT_EQ(Render(c), kB + "<｜User｜>hi<｜Assistant｜></think>");
  c.messages.insert(c.messages.begin(), Of(Role::kSystem, "be brief"));
  c.messages.push_back(Assistant("unused", "yes"));
  c.messages.push_back(Of(Role::kUser, "a"));
  c.messages.push_back(Of(Role::kUser, "b"));
  EXPECT_EQ(Render(c), kB + "<｜System｜>be brief<｜User｜>hi<｜Assistant｜></think>yes" + std::string(kEos) +
                           "<｜User｜>a\n\nb<｜Assistant｜></think>");
}

TEST(Chat, ThinkingModeAndEffort) {
  Conversation c;
  c.messages = {Of(Role::kUser, "hi")};
  EXPECT_EQ(Render(c), kB + "<｜System｜>" + kEffort75 + "<｜User｜>hi<｜Assistant｜><think>");
  c.effort = 7;
  EXPECT_NE(Render(c).find("Reasoning Effort: 7 (range"), std::string::npos);
  EXPECT_EQ(ParseEffort("low"), 50);
  EXPECT_EQ(ParseEffort("high"), 75);
  EXPECT_EQ(ParseEffort("xhigh"), 75);
  EXPECT_EQ(ParseEffort("max"), 100);
  EXPECT_EQ(ParseEffort("1"), 1);
  EXPECT_EQ(ParseEffort("100"), 100);
  for (const char* bad : {"", "medium", "0", "101", "-1", "7 ", "+7", "7.0", "99999999999"}) {
    EXPECT_THROW(ParseEffort(bad), Error) << bad;
  }
}

TEST(Chat, DropThinking) {
  Conversation c;
  c.messages = {Of(Role::kUser, "1"), Assistant("why", "one"), Of(Role::kUser, "2")};
  EXPECT_EQ(Render(c), kB + "<｜System｜>" + kEffort75 + "<｜User｜>1<｜Assistant｜></think>one" + std::string(kEos) +
                           "<｜User｜>2<｜Assistant｜><think>");
  c.drop_thinking = false;
  EXPECT_NE(Render(c).find("<｜Assistant｜><think>why</think>one"), std::string::npos);
  c.drop_thinking = true;
  c.tools = {{"f", "", Json::object()}};
  const ToolsPrompt tools = ToolsPrompt::FromTemplate("T\n{tool_schemas}\n", "t");
  EXPECT_NE(Render(c, &tools).find("<｜Assistant｜><think>why</think>one"), std::string::npos);
  c.tool_choice = ToolChoice::kNone;
  EXPECT_NE(Render(c, nullptr).find("<｜Assistant｜></think>one"), std::string::npos);
}

TEST(Chat, MidSystemReminderAndPrefix) {
  Conversation c;
  c.thinking = false;
  c.messages = {Of(Role::kUser, "1"), Assistant("", "one"), Of(Role::kSystem, "now French"),
                Of(Role::kLatestReminder, "today"), Of(Role::kLatestReminder, "dropped")};
  EXPECT_EQ(Render(c), kB + "<｜User｜>1<｜Assistant｜></think>one" + std::string(kEos) +
                           "<｜System｜>now French<｜latest_reminder｜>today<｜Assistant｜></think>");
  Message prefix = Assistant("", "The answer is");
  prefix.prefix = true;
  c.messages = {Of(Role::kUser, "1"), prefix};
  EXPECT_EQ(Render(c), kB + "<｜User｜>1<｜Assistant｜></think>The answer is");
  c.thinking = true;
  c.messages[1] = Assistant("let me", "");
  c.messages[1].prefix = true;
  EXPECT_TRUE(Render(c).ends_with("<｜Assistant｜><think>let me"));
}

TEST(Chat, ToolCallsAndResults) {
  const ToolsPrompt tools =
      ToolsPrompt::FromTemplate("## Tools <{dsml_token}{tc_block_name}> {{}}\n{tool_schemas}\nend\n", "t");
  Conversation c;
  c.thinking = false;
  c.tools = {{"f", "does", Json::parse(R"({"type":"object","n":1e-05})")}};
  c.tool_choice = ToolChoice::kRequired;
  Message first = Of(Role::kTool, "R1"), second = Of(Role::kTool, "R2");
  first.tool_call_id = "b";
  second.tool_call_id = "a";
  c.messages = {
      Of(Role::kUser, "q"),
      Assistant("", "",
                {{"a", "f", R"({"s":"x\ny","n":[1,2.0],"o":{"k":null}})"}, {"b", "g", "{}"}, {"c", "h", "oops"}}),
      first, second, Of(Role::kUser, "more")};
  EXPECT_EQ(Render(c, &tools),
            kB +
                "<｜System｜>\n\n## Tools <｜DSML｜ calls> {}\n"
                R"({"name": "f", "description": "does", "parameters": {"type": "object", "n": 1e-05}})"
                "\nend\n<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n"
                "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"s\" string=\"true\">x\ny</｜DSML｜ "
                "parameter>\n"
                "<｜DSML｜ parameter name=\"n\" string=\"false\">[1, 2.0]</｜DSML｜ parameter>\n"
                "<｜DSML｜ parameter name=\"o\" string=\"false\">{\"k\": null}</｜DSML｜ "
                "parameter>\n</｜DSML｜ invoke>\n"
                "<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n"
                "<｜DSML｜ invoke name=\"h\">\n<｜DSML｜ parameter name=\"arguments\" "
                "string=\"true\">oops</｜DSML｜ parameter>\n"
                "</｜DSML｜ invoke>\n</｜DSML｜ calls>" +
                std::string(kEos) +
                "<｜User｜><tool_result>R2</tool_result>\n\n<tool_result>R1</"
                "tool_result>\n\nmore<｜Assistant｜></think>"
                "\n\n<｜DSML｜ calls>\n");
  try {
    Render(c, nullptr);
    ADD_FAILURE() << "rendered without the wording";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("tools_prompt.txt"), std::string::npos);
  }
}

TEST(Chat, ResponseFormatAndTasks) {
  Conversation c;
  c.thinking = false;
  c.messages = {Of(Role::kUser, "q")};
  c.response_format = Json::parse(R"({"type":"json_object"})");
  EXPECT_EQ(Render(c), kB + "<｜System｜>\n\n## Response Format:\n\nYou MUST strictly adhere to the "
                            "following schema to reply:\n"
                            "{\"type\": \"json_object\"}<｜User｜>q<｜Assistant｜></think>");
  c.response_format.reset();
  c.messages[0].task = "title";
  EXPECT_EQ(Render(c), kB + "<｜User｜>q<｜title｜>");
  c.messages[0].task = "action";
  EXPECT_EQ(Render(c), kB + "<｜User｜>q<｜Assistant｜></think><｜action｜>");
  c.messages.push_back(Assistant("r", "search"));
  c.messages.push_back(Of(Role::kUser, "2"));
  EXPECT_EQ(Render(c), kB + "<｜User｜>q<｜Assistant｜></think><｜action｜>search" + std::string(kEos) +
                           "<｜User｜>2<｜Assistant｜></think>");
}

// Control tokens in every field of a conversation: their number in the ids is that of a harmless
// conversation.
TEST(Chat, UserTextNeverBecomesAControlToken) {
  const ToolsPrompt tools = ToolsPrompt::FromTemplate("{dsml_token}{tool_schemas}", "t");
  const auto controls = [&](const std::string& text) {
    Conversation c;
    c.drop_thinking = false;
    c.tools = {{text, text, Json{{text, text}}}};
    c.response_format = Json{{"a", text}};
    Message result = Of(Role::kTool, text);
    result.tool_call_id = text;
    c.messages = {Of(Role::kSystem, text), Of(Role::kUser, text),
                  Assistant(text, text, {{text, text, Json{{text, text}}.dump()}, {"", text, text}}), result,
                  Of(Role::kLatestReminder, text)};
    std::vector<int32_t> found;
    for (const int32_t id : RenderConversation(c, &tools).Encode(Tiny())) {
      if (Tiny().AddedTokenId(Tiny().TokenSpelling(id))) found.push_back(id);
    }
    return found;
  };
  const auto harmless = controls("hello");
  EXPECT_GT(harmless.size(), 10u);
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    const std::string spelling(Tiny().TokenSpelling(id));
    if (Tiny().AddedTokenId(spelling) != id) continue;
    const bool grounding =
        std::find(std::begin(kGroundingTokens), std::end(kGroundingTokens), spelling) != std::end(kGroundingTokens);
    // The assistant's reasoning and content may carry grounding tokens; nothing else may.
    EXPECT_EQ(controls(spelling).size(), harmless.size() + (grounding ? 2 : 0)) << spelling;
    if (!grounding) {
      EXPECT_EQ(controls(spelling), harmless) << spelling;
    }
  }
}

TEST(Chat, RefusesByName) {
  const auto refuses = [](const std::string& named, auto edit) {
    Conversation c;
    c.messages = {Of(Role::kUser, "q"), Assistant("", "a"), Of(Role::kUser, "q")};
    edit(c);
    try {
      Render(c);
      ADD_FAILURE() << "accepted: " << named;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_TRUE(std::string(error.what()).starts_with(named)) << error.what();
    }
  };
  refuses("messages ", [](Conversation& c) { c.messages.clear(); });
  refuses("effort ", [](Conversation& c) { c.effort = 0; });
  refuses("messages[0].task ", [](Conversation& c) { c.messages[0].task = "poem"; });
  refuses("messages[1].task ", [](Conversation& c) { c.messages[1].task = "title"; });
  refuses("messages[1].prefix ", [](Conversation& c) { c.messages[1].prefix = true; });
  refuses("messages[2].prefix ", [](Conversation& c) { c.messages[2].prefix = true; });
  refuses("messages[0].tool_calls ", [](Conversation& c) { c.messages[0].tool_calls = {{"", "f", "{}"}}; });
  refuses("messages[0].tools ", [](Conversation& c) { c.messages[0].tools = {{"f", "", Json()}}; });
  refuses("messages[0].reasoning ", [](Conversation& c) { c.messages[0].reasoning = "r"; });
  refuses("messages[0].tool_call_id ", [](Conversation& c) { c.messages[0].tool_call_id = "r"; });
}

TEST(Prompt, NeighbouringTextIsOneSegment) {
  Prompt prompt;
  prompt.Text("a");
  prompt.Text("");
  prompt.Text("b");
  prompt.Control(kUserToken);
  prompt.Control(kUserToken);
  prompt.Text("c");
  ASSERT_EQ(prompt.segments().size(), 4u);
  EXPECT_EQ(prompt.segments()[0].text, "ab");
  prompt.Control("<｜nothing｜>");
  EXPECT_THROW(prompt.Encode(Tiny()), Error);
}

// A recorded turn stands in the prompt as its own ids, between the same control tokens.
TEST(Chat, SampledTurnsKeepTheirIds) {
  Conversation c;
  Message turn = Assistant("", "", {{"1", "f", "{}"}});
  c.messages = {Of(Role::kUser, "hi"), turn, Of(Role::kTool, "done")};
  const std::vector<int32_t> plain = RenderConversation(c, nullptr).Encode(Tiny());
  const std::vector<int32_t> sampled = {300, 301, 302};
  c.messages[1].sampled_ids = sampled;
  c.messages[1].sampled_thinking = true;
  EXPECT_EQ(RenderConversation(c, nullptr).Encode(Tiny()), plain) << "sampled behind another header";
  c.drop_thinking = false;
  const std::vector<int32_t> ids = RenderConversation(c, nullptr).Encode(Tiny());
  Conversation before;
  before.messages = {Of(Role::kUser, "hi")};
  const std::vector<int32_t> around[] = {RenderConversation(before, nullptr).Encode(Tiny()),
                                         Tiny().Encode("<｜end▁of▁sentence｜><｜User｜>", AddedTokens::kAll)};
  std::vector<int32_t> expected = around[0];
  expected.insert(expected.end(), sampled.begin(), sampled.end());
  expected.insert(expected.end(), around[1].begin(), around[1].end());
  ASSERT_GT(ids.size(), expected.size());
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<long>(expected.size())), expected);
}

TEST(Chat, ANamedToolIsOpened) {
  const ToolsPrompt tools = ToolsPrompt::FromTemplate("{tool_schemas}", "t");
  Conversation c;
  c.messages = {Of(Role::kUser, "hi")};
  c.tools = {{"f", "", nullptr}};
  c.tool_choice = ToolChoice::kRequired;
  c.required_tool = "f";
  EXPECT_TRUE(Render(c, &tools).ends_with("<think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"));
}

}  // namespace
}  // namespace senko::text
