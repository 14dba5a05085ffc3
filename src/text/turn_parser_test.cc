#include "text/turn_parser.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "text/special_tokens.h"
#include "text/test_support.h"

namespace senko::text {
namespace {

using namespace std::string_literals;

struct Parsed {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool malformed = false;
  bool operator==(const Parsed&) const = default;
};

// Checks what must hold of every event, and joins them.
class Collector {
 public:
  void Add(const std::vector<TurnEvent>& events) {
    for (const TurnEvent& event : events) {
      EXPECT_TRUE(IsWellFormed(event.text));
      switch (event.kind) {
        case TurnEvent::Kind::kReasoning:
          EXPECT_TRUE(parsed.content.empty() && parsed.calls.empty());
          parsed.reasoning += event.text;
          break;
        case TurnEvent::Kind::kContent:
          EXPECT_TRUE(parsed.calls.empty());
          parsed.content += event.text;
          break;
        case TurnEvent::Kind::kToolCallBegin:
          EXPECT_FALSE(open_);
          open_ = true;
          parsed.calls.emplace_back(event.text, "");
          break;
        case TurnEvent::Kind::kToolArguments:
          EXPECT_TRUE(open_);
          parsed.calls.back().second += event.text;
          break;
        case TurnEvent::Kind::kToolCallEnd:
          EXPECT_TRUE(open_);
          open_ = false;
          EXPECT_TRUE(ParseJson(parsed.calls.back().second, "arguments").is_object()) << parsed.calls.back().second;
          EXPECT_FALSE(parsed.calls.back().first.empty());
          break;
      }
      const bool words = event.kind == TurnEvent::Kind::kReasoning || event.kind == TurnEvent::Kind::kContent;
      EXPECT_EQ(event.call, words ? -1 : static_cast<int>(parsed.calls.size()) - 1);
    }
  }
  bool open() const { return open_; }
  Parsed parsed;

 private:
  bool open_ = false;
};

Parsed Parse(TurnStart start, const std::vector<std::string_view>& pieces) {
  TurnParser parser(start);
  Collector collector;
  for (const auto piece : pieces) {
    std::vector<TurnEvent> events;
    parser.Feed(piece, &events);
    collector.Add(events);
  }
  std::vector<TurnEvent> events;
  parser.Finish(&events);
  collector.Add(events);
  EXPECT_FALSE(collector.open());
  collector.parsed.malformed = parser.malformed();
  return collector.parsed;
}

std::vector<std::string_view> SingleBytes(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (size_t i = 0; i < text.size(); ++i) pieces.push_back(text.substr(i, 1));
  return pieces;
}

// Parses whole, byte by byte and at every cut in two; all must agree.
Parsed ParseAllCuts(TurnStart start, std::string_view text) {
  const Parsed whole = Parse(start, {text});
  EXPECT_EQ(whole, Parse(start, SingleBytes(text))) << text;
  for (size_t i = 1; i < text.size(); ++i)
    EXPECT_EQ(whole, Parse(start, {text.substr(0, i), text.substr(i)})) << text << i;
  return whole;
}

std::string Parameter(const std::string& name, const std::string& is_string, const std::string& value) {
  return "<｜DSML｜ parameter name=\""s + name + "\" string=\"" + is_string + "\">" + value + "</｜DSML｜ parameter>\n";
}
std::string Invoke(const std::string& name, const std::string& body) {
  return "<｜DSML｜ invoke name=\""s + name + "\">\n" + body + "</｜DSML｜ invoke>\n";
}
std::string Calls(const std::string& body) { return "\n\n<｜DSML｜ calls>\n" + body + "</｜DSML｜ calls>"; }

constexpr auto kReasoning = TurnStart::kReasoning;
constexpr auto kContent = TurnStart::kContent;

TEST(TurnParser, ReasoningAndContent) {
  EXPECT_EQ(ParseAllCuts(kReasoning, "why\nnot</think>Because."), (Parsed{"why\nnot", "Because.", {}}));
  EXPECT_EQ(ParseAllCuts(kReasoning, "</think>"), Parsed{});
  EXPECT_EQ(ParseAllCuts(kReasoning, ""), Parsed{});
  EXPECT_EQ(ParseAllCuts(kReasoning, "cut off </thi"), (Parsed{"cut off </thi", "", {}}));
  EXPECT_EQ(ParseAllCuts(kReasoning, "a</think>b</think>c"), (Parsed{"a", "b</think>c", {}}));
  EXPECT_EQ(ParseAllCuts(kContent, "no </think> here, 日本 🌍\n\n<"), (Parsed{"", "no </think> here, 日本 🌍\n\n<", {}}));
  EXPECT_EQ(ParseAllCuts(kContent, "half \xF0\x9F\x8C"), (Parsed{"", "half \xEF\xBF\xBD", {}}));
}

TEST(TurnParser, Calls) {
  const std::string two = Calls(Invoke("f", Parameter("cmd", "true", "ls 2>&1\n\"q\" \\ \x01") +
                                                Parameter("n", "false", " [1, {\"a\": null}] ")) +
                                Invoke("ns.g", "\n"));
  const Parsed want{
      "r",
      "text",
      {{"f", "{\"cmd\": \"ls 2>&1\\n\\\"q\\\" \\\\ \\u0001\", \"n\": [1, {\"a\": null}]}"}, {"ns.g", "{}"}}};
  EXPECT_EQ(ParseAllCuts(kReasoning, "r</think>text"s + two), want);
  // What follows the block is dropped.
  EXPECT_EQ(ParseAllCuts(kReasoning, "r</think>text"s + two + "\nmore <think>"), want);
  EXPECT_EQ(ParseAllCuts(TurnStart::kToolCalls, Invoke("f", Parameter("a", "true", "")) + "</｜DSML｜ calls>"),
            (Parsed{"", "", {{"f", "{\"a\": \"\"}"}}}));
  EXPECT_EQ(ParseAllCuts(kReasoning, "</think>"s + Calls(Invoke("f", "{\"x\": [1,2]}\n"))),
            (Parsed{"", "", {{"f", "{\"x\": [1,2]}"}}}));
  EXPECT_EQ(ParseAllCuts(kContent, Calls(Invoke("f", "")).substr(2)), (Parsed{"", "", {{"f", "{}"}}}));
  EXPECT_EQ(ParseAllCuts(kContent, "a\n\n\n"s + Calls("")), (Parsed{"", "a\n\n\n", {}}));
}

// Values that end like the tag's own name, and text that only looks like a tag.
TEST(TurnParser, ValuesAreExact) {
  for (const std::string value :
       {"find /tmp", "parameter", "</", "</｜DSML｜", "</｜DSML｜ param", "<｜DSML｜ invoke name=\"x\">", "a\">b",
        "｜DSML｜", "</parameter>", "</｜DSML｜parameter>", "tail\n", "\n", " ", "日本🌍"}) {
    const Parsed parsed = ParseAllCuts(kContent, "c"s + Calls(Invoke("f", Parameter("k", "true", value))));
    ASSERT_EQ(parsed.calls.size(), 1u) << value;
    EXPECT_EQ(Json::parse(parsed.calls[0].second), (Json{{"k", value}})) << value;
    EXPECT_FALSE(parsed.malformed) << value;
  }
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    const std::string value = std::string("x/") + letter;
    EXPECT_EQ(
        Json::parse(ParseAllCuts(kContent, Calls(Invoke("f", Parameter("k", "true", value)))).calls.at(0).second)["k"],
        value);
  }
}

TEST(TurnParser, OnlyTheFullMarkerFires) {
  for (const std::string text :
       {"The tag <｜DSML｜ calls> opens a block.", "Write:\n\n<｜DSML｜ calls>\nand then",
        "```\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n```", "a\n\n<｜DSML｜calls>\n<｜DSML｜invoke name=\"f\">",
        "\n\n<|DSML| calls>\n<|DSML| invoke", "<｜DSML｜ calls> <｜DSML｜ invoke",
        "a\n\n<｜DSML｜ function_calls>\n"}) {
    EXPECT_EQ(ParseAllCuts(kContent, text), (Parsed{"", text, {}}));
  }
}

TEST(TurnParser, BlockEndsReasoning) {
  EXPECT_EQ(ParseAllCuts(kReasoning, "thinking"s + Calls(Invoke("f", Parameter("a", "true", "b")))),
            (Parsed{"thinking", "", {{"f", "{\"a\": \"b\"}"}}, true}));
  EXPECT_EQ(ParseAllCuts(kReasoning, "quoted <｜DSML｜ calls> in thought</think>ok"),
            (Parsed{"quoted <｜DSML｜ calls> in thought", "ok", {}}));
}

TEST(TurnParser, CutOffBlocksStillParse) {
  const std::string text =
      "c"s + Calls(Invoke("f", Parameter("a", "true", "va\"l") + Parameter("b", "false", "12")) + Invoke("g", ""));
  const Json full[] = {Json{{"a", "va\"l"}, {"b", 12}}, Json::object()};
  for (size_t size = 0; size < text.size(); ++size) {
    const Parsed parsed = ParseAllCuts(kContent, text.substr(0, size));
    EXPECT_EQ(parsed.content.find("DSML"), std::string::npos);
    for (size_t i = 0; i < parsed.calls.size(); ++i) {
      const Json arguments = Json::parse(parsed.calls[i].second);
      EXPECT_EQ(parsed.calls[i].second.find("DSML"), std::string::npos);
      if (arguments.contains("b")) {
        EXPECT_EQ(arguments["b"], full[i]["b"]);
      }
    }
  }
}

TEST(TurnParser, Malformed) {
  // A value that says it is JSON and is not becomes a string; a repeated parameter counts once.
  EXPECT_EQ(
      ParseAllCuts(kContent, Calls(Invoke("f", Parameter("a", "false", "not json") + Parameter("a", "true", "again")))),
      (Parsed{"", "", {{"f", "{\"a\": \"not json\"}"}}, true}));
  EXPECT_EQ(
      ParseAllCuts(kContent, Calls(Invoke("f", Parameter("a", "false", std::string(100, '[') + std::string(100, ']')))))
          .malformed,
      true);
  // Missing closing tags end with the next tag.
  EXPECT_EQ(
      ParseAllCuts(kContent, Calls("<｜DSML｜ invoke name=\"f\">\n"s + Parameter("a", "true", "b") + Invoke("g", ""))),
      (Parsed{"", "", {{"f", "{\"a\": \"b\"}"}, {"g", "{}"}}, true}));
  EXPECT_EQ(ParseAllCuts(kContent, Calls(Invoke("f", "stray") + "junk")), (Parsed{"", "", {{"f", "{}"}}, true}));
  const std::string endless = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\""s + std::string(100000, 'x');
  EXPECT_EQ(Parse(kContent, {endless}), (Parsed{"", "", {}, true}));
  EXPECT_EQ(Parse(kContent, SingleBytes(endless)), (Parsed{"", "", {}, true}));
}

// A call without a name could not be sent back: its block is text, and inside a block it is dropped.
TEST(TurnParser, NamelessCallsAreNoCalls) {
  const std::string nameless = Invoke("", Parameter("a", "true", "b"));
  const std::string good = Invoke("g", Parameter("a", "true", "c"));
  for (const std::string& block : {Calls(nameless), Calls(nameless + good), Calls(nameless).substr(2)}) {
    EXPECT_EQ(ParseAllCuts(kContent, block), (Parsed{"", block, {}}));
    EXPECT_EQ(ParseAllCuts(kReasoning, block + "</think>b"), (Parsed{block, "b", {}}));
  }
  const Parsed one{"", "", {{"g", "{\"a\": \"c\"}"}}, true};
  EXPECT_EQ(ParseAllCuts(kContent, Calls(good + nameless)), one);
  EXPECT_EQ(ParseAllCuts(TurnStart::kToolCalls, nameless + good + "</｜DSML｜ calls>"), one);
  // The tag ends the call before it, whose closing tag is missing: what is the nameless one's is nobody's.
  EXPECT_EQ(ParseAllCuts(kContent, Calls("<｜DSML｜ invoke name=\"g\">\n"s + Parameter("a", "true", "c") + nameless)),
            one);
  EXPECT_EQ(ParseAllCuts(kContent, Calls(Invoke("\"", ""))), (Parsed{"", "", {{"\"", "{}"}}}));
}

TEST(TurnParser, WithoutCallsMarkupIsText) {
  for (const std::string& text :
       {Calls(Invoke("f", "")), Calls(Invoke("f", "")).substr(2), "a"s + Calls(""), "\n\n<｜DSML"s}) {
    for (size_t size = 1; size <= text.size(); ++size) {
      TurnParser parser(kReasoning, false);
      Collector collector;
      std::vector<TurnEvent> events;
      const std::string turn = text + "</think>" + text;
      for (size_t at = 0; at < turn.size(); at += size) parser.Feed(std::string_view(turn).substr(at, size), &events);
      EXPECT_FALSE(parser.done());
      parser.Finish(&events);
      collector.Add(events);
      EXPECT_EQ(collector.parsed, (Parsed{text, text, {}}));
    }
  }
}

// What a reader of JSON might refuse, or take for something else than another does, is a string.
TEST(TurnParser, ValuesThatRequestsMayNotHoldAreStrings) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  for (const std::string& value :
       {"{\"a\":1,\"a\":2}"s, "1e999"s, "\"\\ud800\""s, nested(49), "1\0"s + "2", "\xEF\xBB\xBF" + "1"s, "NaN"s}) {
    const Parsed parsed = ParseAllCuts(kContent, Calls(Invoke("f", Parameter("k", "false", value))));
    EXPECT_EQ(ParseJson(parsed.calls.at(0).second, "arguments"), (Json{{"k", value}}));
    EXPECT_TRUE(parsed.malformed);
  }
  EXPECT_FALSE(ParseAllCuts(kContent, Calls(Invoke("f", Parameter("k", "false", nested(48))))).malformed);
  EXPECT_EQ(ParseAllCuts(kContent, Calls(Invoke("f", "{\"a\":1,\"a\":2}"))), (Parsed{"", "", {{"f", "{}"}}, true}));
  std::string parameters;
  for (int i = 0; i < 4100; ++i) parameters += Parameter(std::to_string(i), "false", "1");
  const Parsed many = Parse(kContent, {Calls(Invoke("f", parameters))});
  EXPECT_EQ(ParseJson(many.calls.at(0).second, "arguments").size(), 4096u);
  EXPECT_TRUE(many.malformed);
}

// Arguments arrive while the value is still being written, and nothing is held back for long.
TEST(TurnParser, StringsStream) {
  TurnParser parser(kContent);
  std::vector<TurnEvent> events;
  parser.Feed("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">",
              &events);
  std::string arguments;
  size_t held = 0;
  for (int i = 0; i < 2000; ++i) {
    events.clear();
    parser.Feed("x", &events);
    for (const auto& event : events) arguments += event.text;
    held = std::max(held, static_cast<size_t>(i + 1) + 7 - arguments.size());
  }
  EXPECT_LE(held, 8u);  // the opening `{"a": "` came before
  EXPECT_GE(arguments.size(), 2000u);
}

// Random assemblies of tag pieces, cut at random: cuts do not matter, arguments parse, text is well-formed.
TEST(TurnParser, RandomAssemblies) {
  std::mt19937_64 rng(123);
  const std::vector<std::string> parts = {"</think>",
                                          "\n\n",
                                          "\n",
                                          "<｜DSML｜",
                                          "</｜DSML｜",
                                          " calls>\n",
                                          " calls>",
                                          " invoke",
                                          " invoke>",
                                          " name=\"f\">\n",
                                          " name=\"",
                                          "\" string=\"true\">",
                                          "\" string=\"false\">",
                                          " parameter",
                                          " parameter>",
                                          "12",
                                          "{\"a\":1}",
                                          "text",
                                          "🌍",
                                          "\xF0\x9F",
                                          "\xFF",
                                          "<",
                                          "｜DSML｜",
                                          "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n",
                                          "<｜DSML｜ parameter name=\"a\" string=\"true\">",
                                          "<｜DSML｜ parameter name=\"b\" string=\"false\">",
                                          "</｜DSML｜ parameter>\n"};
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (size_t k = rng() % 25; k > 0; --k) text += parts[rng() % parts.size()];
    const auto start = static_cast<TurnStart>(rng() % 3);
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(text.size() - at, 1 + rng() % 9);
      pieces.push_back(std::string_view(text).substr(at, size));
      at += size;
    }
    ASSERT_EQ(Parse(start, {text}), Parse(start, pieces)) << testing::PrintToString(text);
  }
}

TEST(TurnParser, LongTurnsAreLinear) {
  std::string text = "\n\n<｜DSML｜ calls>\n";
  for (int i = 0; i < 20000; ++i) text += Invoke("f", Parameter("a", "true", "some value"));
  EXPECT_EQ(Parse(kContent, {text}).calls.size(), 20000u);
  EXPECT_EQ(Parse(kContent, {std::string(1'000'000, '\n')}).content.size(), 1'000'000u);
  EXPECT_EQ(Parse(kContent, {std::string(1'000'000, '<')}).content.size(), 1'000'000u);
}

TEST(ParseTurn, TakesTheEndTokenAway) {
  const AssistantTurn turn =
      ParseTurn("r</think>c"s + Calls(Invoke("f", Parameter("a", "false", "1"))) + std::string(kEos), kReasoning);
  EXPECT_EQ(turn.reasoning, "r");
  EXPECT_EQ(turn.content, "c");
  ASSERT_EQ(turn.tool_calls.size(), 1u);
  EXPECT_EQ(turn.tool_calls[0].name, "f");
  EXPECT_EQ(turn.tool_calls[0].arguments, "{\"a\": 1}");
  EXPECT_FALSE(turn.malformed);
}

// Words lie where they say they lie, and what is settled is never words that are yet to come.
TEST(TurnParser, PositionsOfWords) {
  const std::string text = "why<\n\n</think>say 日本 <｜ that\n\n" + Calls(Invoke("f", "")).substr(2);
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    TurnParser parser(kReasoning);
    std::vector<TurnEvent> events;
    uint64_t settled = 0;
    for (size_t at = 0; at < text.size(); at += cut) {
      events.clear();
      parser.Feed(std::string_view(text).substr(at, cut), &events);
      for (const TurnEvent& event : events) {
        if (event.kind != TurnEvent::Kind::kReasoning && event.kind != TurnEvent::Kind::kContent) continue;
        EXPECT_EQ(text.substr(event.at, event.text.size()), event.text);
        EXPECT_GE(event.at, settled);
      }
      EXPECT_GE(parser.position(), settled);
      EXPECT_LE(parser.position(), std::min(text.size(), at + cut));
      settled = parser.position();
    }
    EXPECT_EQ(settled, text.size());
  }
}

TEST(TurnParser, StartsWhereThePromptLeavesOff) {
  const ToolsPrompt tools = ToolsPrompt::FromTemplate("{dsml_token}{thinking_start_token}{tool_schemas}", "t");
  Message user, turn;
  user.content = "<think>";
  turn.role = Role::kAssistant;
  turn.tool_calls = {{"1", "f", "{}"}};
  Conversation c;
  c.messages = {user, turn, user};
  c.tools = {{"f", "", nullptr}};
  const auto start = [&] { return StartOf(RenderConversation(c, &tools)); };
  EXPECT_EQ(start(), TurnStart::kReasoning);
  c.thinking = false;
  EXPECT_EQ(start(), TurnStart::kContent);
  c.tool_choice = ToolChoice::kRequired;
  EXPECT_EQ(start(), TurnStart::kToolCalls);
  c.tool_choice = ToolChoice::kAuto;
  c.thinking = true;
  turn.tool_calls.clear();
  turn.prefix = true;
  turn.reasoning = "so";
  c.messages.push_back(turn);
  EXPECT_EQ(start(), TurnStart::kReasoning);
  c.messages.back().content = "Well,";
  EXPECT_EQ(start(), TurnStart::kContent);
}

}  // namespace
}  // namespace senko::text
