// Turns that call tools come back with the ids that were sampled.
#include "api/call_memory.h"

#include <gtest/gtest.h>

#include <random>

#include "api/test_streams.h"

namespace senko::api {
namespace {

text::Message MessageOf(const RememberedTurn& turn) {
  text::Message message;
  message.role = text::Role::kAssistant;
  message.content = turn.content;
  for (const CallRecord& call : turn.calls) message.tool_calls.push_back({call.id, call.name, call.arguments});
  return message;
}

TEST(SameJson, ValuesNotSpelling) {
  EXPECT_TRUE(SameJson(R"({"a": 1, "b": [true, {"c": "x\n"}]})", R"({"b":[true,{"c":"x\u000a"}],"a":1})"));
  EXPECT_TRUE(SameJson("not json", "not json"));
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{{"{}", "[]"},
                                                                             {R"({"a":1})", R"({"a":2})"},
                                                                             {R"({"a":1})", R"({"a":1,"b":1})"},
                                                                             {"[1,2]", "[2,1]"},
                                                                             {R"({"a":"1"})", R"({"a":1})"},
                                                                             {"not json", "not  json"},
                                                                             {"{}", "not json"},
                                                                             {R"({"a":null})", "{}"}}) {
    EXPECT_FALSE(SameJson(a, b)) << a << b;
  }
}

TEST(CallMemory, OnlyForTheSameTurnInTheSameScope) {
  CallMemory memory(1 << 20);
  const MemoryScope scope{"key", "salt"};
  RememberedTurn turn;
  turn.ids = {20, 21};
  turn.thinking = true;
  turn.reasoning = "why";
  turn.content = "say";
  turn.calls = {{"c1", "f", R"({"a": 1, "b": 2})"}, {"c2", "g", "{}"}};
  memory.Remember(scope, turn);
  const auto recalled = [&](const MemoryScope& from, const std::function<void(text::Message*)>& change) {
    text::Message message = MessageOf(turn);
    change(&message);
    memory.Recall(from, &message);
    return message.sampled_ids == turn.ids && message.sampled_thinking;
  };
  EXPECT_TRUE(recalled(scope, [](auto*) {}));
  EXPECT_TRUE(recalled(scope, [](auto* m) { m->tool_calls[0].arguments = R"({"b":2,"a":1})"; }));
  EXPECT_TRUE(recalled(scope, [](auto* m) { m->reasoning = "why"; }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { m->reasoning = "because"; }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { m->content = "say "; }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { m->tool_calls[0].arguments = R"({"a":1,"b":3})"; }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { m->tool_calls[1].name = "h"; }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { m->tool_calls.pop_back(); }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { std::swap(m->tool_calls[0], m->tool_calls[1]); }));
  EXPECT_FALSE(recalled(scope, [](auto* m) { m->tool_calls[0].id = ""; }));
  for (const MemoryScope& other :
       {MemoryScope{"kez", "salt"}, MemoryScope{"key", "salz"}, MemoryScope{"key", ""}, MemoryScope{"", "salt"},
        MemoryScope{"keys", "alt"}, MemoryScope{"ke", "ysalt"}, MemoryScope{}}) {
    EXPECT_FALSE(recalled(other, [](auto*) {}));
  }
}

TEST(CallMemory, IsBounded) {
  CallMemory memory(100000);
  const auto turn = [](int i) {
    RememberedTurn out;
    out.ids.assign(500, i);
    out.calls = {{"c" + std::to_string(i), "f", "{}"}};
    return out;
  };
  for (int i = 0; i < 1000; ++i) {
    memory.Remember({}, turn(i));
    EXPECT_LE(memory.bytes(), 100000u);
    text::Message first = MessageOf(turn(0));
    memory.Recall({}, &first);
    EXPECT_EQ(first.sampled_ids.empty(), false) << "used again and again, so it stays";
  }
  EXPECT_GT(memory.turns(), 20u);
  text::Message gone = MessageOf(turn(1)), last = MessageOf(turn(999));
  memory.Recall({}, &gone);
  memory.Recall({}, &last);
  EXPECT_TRUE(gone.sampled_ids.empty());
  EXPECT_FALSE(last.sampled_ids.empty());
  RememberedTurn huge = turn(5000);
  huge.content.assign(200000, 'x');
  memory.Remember({}, huge);
  EXPECT_LE(memory.bytes(), 100000u);
}

// ---- through the routes: the second prompt goes on exactly where the first answer ended

// A text as any tokens that spell it, which encoding it would not choose. Control tokens stay what they are.
std::vector<int32_t> OddlyTokenized(const text::Tokenizer& tokenizer, std::string_view text, std::mt19937_64* rng) {
  std::vector<int32_t> ids;
  const auto control = [&](std::string_view rest) -> std::string_view {
    for (const std::string_view token : {"｜DSML｜", "</think>"}) {
      if (rest.starts_with(token)) return token;
    }
    return {};
  };
  while (!text.empty()) {
    if (const std::string_view token = control(text); !token.empty()) {
      ids.push_back(*tokenizer.AddedTokenId(token));
      text.remove_prefix(token.size());
      continue;
    }
    const size_t end = std::min(text.find("｜DSML｜"), text.find("</think>"));
    std::vector<int32_t> fits;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer.TokenBytes(id);
      if (!bytes.empty() && bytes.size() <= end && text.starts_with(bytes) && !tokenizer.AddedTokenId(bytes)) {
        fits.push_back(id);
      }
    }
    ids.push_back(fits.at((*rng)() % fits.size()));
    text.remove_prefix(tokenizer.TokenBytes(ids.back()).size());
  }
  return ids;
}

struct Round {
  std::vector<int32_t> first, second;  // prompts
  std::vector<int32_t> sampled;
};

class MemoryThroughApis : public testing::TestWithParam<const text::Tokenizer*> {};

const std::string kBlock =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"cmd\" string=\"true\">ls  -la 2>&1 "
    "| grep 日本</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"n\" string=\"false\">[1,2 , {\"z\":1.50, \"a\":null}]</｜DSML｜ parameter>\n</｜DSML｜ "
    "invoke>\n"
    "<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

void ExpectContinued(const Round& round, std::string_view what) {
  std::vector<int32_t> expected = round.first;
  expected.insert(expected.end(), round.sampled.begin(), round.sampled.end());
  expected.push_back(kTestEos);
  ASSERT_GT(round.second.size(), expected.size()) << what;
  EXPECT_EQ(std::vector<int32_t>(round.second.begin(), round.second.begin() + static_cast<long>(expected.size())),
            expected)
      << what;
}

TEST_P(MemoryThroughApis, TheNextPromptGoesOn) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  TestApi api({}, 1 << 16, GetParam());
  const Json chat_tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
  for (const bool thinking : {false, true}) {
    for (const bool stream : {false, true}) {
      const std::string text = (thinking ? "I  should.</think>" : "") + std::string("Let me  see.") + kBlock;
      Round round;
      round.sampled = OddlyTokenized(api.tokenizer, text, &rng);
      ASSERT_NE(round.sampled, api.tokenizer.Encode(text, text::AddedTokens::kAll))
          << "the test needs another tokenization";
      api.Say(round.sampled, 1 + rng() % 4);

      // Chat completions: arguments come back parsed and written anew, reasoning or not.
      for (const bool reasons : {false, true}) {
        Json body = UserChat("list");
        body["tools"] = chat_tools;
        body["chat_template_kwargs"] = {{"thinking", thinking}};
        body["stream"] = stream;
        auto exchange = api.Post("/v1/chat/completions", body);
        round.first = api.engine.submitted().back().prompt;
        const Seen seen = (stream ? ChatStreamSeen(*exchange, false) : ChatWholeSeen(*exchange)).choices.at(0);
        ASSERT_EQ(seen.calls.size(), 2u);
        Json calls = Json::array();
        for (size_t i = 0; i < 2; ++i) {
          calls.push_back(
              {{"id", seen.call_ids[i]},
               {"type", "function"},
               {"function",
                {{"name", seen.calls[i].name}, {"arguments", DumpJson(ParseJson(seen.calls[i].arguments, "a"))}}}});
        }
        Json answer = {{"role", "assistant"}, {"content", seen.content}, {"tool_calls", calls}};
        if (reasons) answer["reasoning_content"] = seen.reasoning;
        body["messages"].push_back(answer);
        body["messages"].push_back({{"role", "tool"}, {"tool_call_id", seen.call_ids[0]}, {"content", "out"}});
        body["messages"].push_back({{"role", "tool"}, {"tool_call_id", seen.call_ids[1]}, {"content", "out"}});
        api.Post("/v1/chat/completions", body);
        round.second = api.engine.submitted().back().prompt;
        ExpectContinued(round, "chat");
        // With another key or salt there is no such memory.
        api.Post("/v1/chat/completions", body, "another key");
        EXPECT_NE(api.engine.submitted().back().prompt, round.second);
        body["cache_salt"] = "x";
        api.Post("/v1/chat/completions", body);
        EXPECT_NE(api.engine.submitted().back().prompt, round.second);
        body.erase("cache_salt");
        body["messages"][1]["tool_calls"][0]["function"]["arguments"] = "{\"cmd\":\"rm\"}";
        api.Post("/v1/chat/completions", body);
        EXPECT_NE(api.engine.submitted().back().prompt, round.second);
      }

      // Messages.
      Json body = {{"max_tokens", 4000},
                   {"messages", {{{"role", "user"}, {"content", "list"}}}},
                   {"stream", stream},
                   {"tools", {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}}},
                   {"thinking", {{"type", thinking ? "adaptive" : "disabled"}}}};
      auto exchange = api.Post("/v1/messages", body);
      round.first = api.engine.submitted().back().prompt;
      Seen seen = (stream ? MessagesStreamSeen(*exchange) : MessagesWholeSeen(*exchange)).choices.at(0);
      ASSERT_EQ(seen.calls.size(), 2u);
      Json content = Json::array();
      if (thinking) content.push_back({{"type", "thinking"}, {"thinking", seen.reasoning}, {"signature", ""}});
      content.push_back({{"type", "text"}, {"text", seen.content}});
      Json results = Json::array();
      for (size_t i = 0; i < 2; ++i) {
        content.push_back({{"type", "tool_use"},
                           {"id", seen.call_ids[i]},
                           {"name", "f"},
                           {"input", ParseJson(seen.calls[i].arguments, "a")}});
        results.push_back({{"type", "tool_result"}, {"tool_use_id", seen.call_ids[i]}, {"content", "out"}});
      }
      body["messages"].push_back({{"role", "assistant"}, {"content", content}});
      body["messages"].push_back({{"role", "user"}, {"content", results}});
      api.Post("/v1/messages", body);
      round.second = api.engine.submitted().back().prompt;
      ExpectContinued(round, "messages");

      // Responses: the output items are sent back as they came.
      body = {{"input", {{{"role", "user"}, {"content", "list"}}}},
              {"stream", stream},
              {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
      if (thinking) continue;  // this API has no switch for it but the server's default
      exchange = api.Post("/v1/responses", body);
      round.first = api.engine.submitted().back().prompt;
      const Json response = stream ? ParseJson(exchange->events.back().second, "e").at("response") : exchange->json();
      for (const Json& item : response.at("output")) {
        body["input"].push_back(item);
        if (item.at("type") != "function_call") continue;
      }
      for (const Json& item : response.at("output")) {
        if (item.at("type") == "function_call") {
          body["input"].push_back(
              {{"type", "function_call_output"}, {"call_id", item.at("call_id")}, {"output", "out"}});
        }
      }
      api.Post("/v1/responses", body);
      round.second = api.engine.submitted().back().prompt;
      ExpectContinued(round, "responses");
    }
  }
}

// A call that the prompt opened: the turn that comes back begins with what the prompt wrote.
TEST_P(MemoryThroughApis, ForcedCallsGoOnToo) {
  TestApi api({}, 1 << 16, GetParam());
  std::mt19937_64 rng(7);
  for (const bool named : {false, true}) {
    const std::string rest =
        "<｜DSML｜ parameter name=\"a\" string=\"true\">x  y</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
        "calls>";
    Round round;
    round.sampled = OddlyTokenized(api.tokenizer, (named ? "" : "<｜DSML｜ invoke name=\"f\">\n") + rest, &rng);
    api.Say(round.sampled);
    Json body = UserChat("list");
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
    body["tool_choice"] = named ? Json{{"type", "function"}, {"function", {{"name", "f"}}}} : Json("required");
    body["chat_template_kwargs"] = {{"thinking", true}};
    const auto exchange = api.Post("/v1/chat/completions", body);
    round.first = api.engine.submitted().back().prompt;
    body["messages"].push_back(exchange->json().at("choices")[0].at("message"));
    body["messages"].push_back({{"role", "tool"}, {"content", "out"}});
    body["tool_choice"] = "auto";
    api.Post("/v1/chat/completions", body);
    round.second = api.engine.submitted().back().prompt;
    ExpectContinued(round, named ? "named" : "required");
  }
}

// An answer that was ended with its first call has no end of its own to be repeated.
TEST_P(MemoryThroughApis, CutTurnsAreNotRemembered) {
  TestApi api({}, 1 << 16, GetParam());
  api.Say(api.tokenizer.Encode(kBlock, text::AddedTokens::kAll));
  Json body = UserChat("list");
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  for (const bool parallel : {false, true}) {
    body["parallel_tool_calls"] = parallel;
    EXPECT_EQ(ChatWholeSeen(*api.Post("/v1/chat/completions", body)).choices.at(0).calls.size(), parallel ? 2u : 1u);
    EXPECT_EQ(api.context->call_memory().turns(), parallel ? 1u : 0u);
  }
}

// A turn with a control token that the parser took for text is rendered as text, never repeated.
TEST_P(MemoryThroughApis, ForgedMarkersAreNotRepeated) {
  TestApi api({}, 1 << 16, GetParam());
  std::vector<int32_t> sampled = api.tokenizer.Encode("a<｜User｜>b" + kBlock, text::AddedTokens::kAll);
  api.Say(sampled);
  Json body = UserChat("list");
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto exchange = api.Post("/v1/chat/completions", body);
  body["messages"].push_back(exchange->json().at("choices")[0].at("message"));
  EXPECT_EQ(body["messages"][1]["content"], "a<｜User｜>b");
  body["messages"].push_back({{"role", "tool"}, {"content", "out"}});
  api.Post("/v1/chat/completions", body);
  const int32_t user = *api.tokenizer.AddedTokenId("<｜User｜>");
  const std::vector<int32_t> prompt = api.engine.submitted().back().prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), user), 2);
  EXPECT_EQ(api.context->call_memory().turns(), 0u);
}

// Like a parrot's: what it says are tokens that encoding never makes.
const text::Tokenizer& Script() {
  static const text::Tokenizer tokenizer =
      ScriptTokenizer({"ls", "  ", " -la", "Let", " me", "cmd\" ", "x", "y", "parameter", "invoke"});
  return tokenizer;
}
const text::Tokenizer* V41() {
  static const std::filesystem::path path =
      std::filesystem::path(SENKO_SOURCE_DIR) / ".cache/tokenizers/deepseek-v4.1/tokenizer.json";
  static const bool there = std::filesystem::exists(path);
  if (!there) return nullptr;
  static const text::Tokenizer tokenizer = text::Tokenizer::FromFile(path);
  return &tokenizer;
}
std::vector<const text::Tokenizer*> Tokenizers() {
  std::vector<const text::Tokenizer*> out = {&Script(), &TinyTokenizer()};
  if (V41() != nullptr) out.push_back(V41());
  return out;
}
INSTANTIATE_TEST_SUITE_P(Tokenizers, MemoryThroughApis, testing::ValuesIn(Tokenizers()));

}  // namespace
}  // namespace senko::api
