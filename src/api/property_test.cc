// Properties over shrinking random input (rapidcheck): whatever is said, however it is cut, a stream and a whole answer
// say the same, in every API.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "api/fuzz_words.h"
#include "api/test_streams.h"
#include "text/utf8_stream.h"

namespace senko::api {
namespace {

struct Case {
  std::string text;
  std::vector<std::string> tokens;
  std::vector<std::string> stops;
  size_t chunk;
  bool eos_apart, thinking, one_call, include_stop;
  int64_t max_tokens, min_tokens;
};

std::string WellFormed(const std::string& bytes) {
  std::string out;
  text::Utf8Stream stream;
  stream.Push(bytes, &out);
  stream.Finish(&out);
  return out;
}

Case RandomCase() {
  Case c;
  for (const size_t word : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, Words().size())))
    c.text += Words()[word];
  if (*rc::gen::inRange(0, 3) == 0) {  // a whole call, so that there are many
    c.text += BlockWord();
  }
  const auto cuts = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 6));
  for (size_t at = 0, i = 0; at < c.text.size(); ++i) {
    const size_t size = std::min(c.text.size() - at, cuts.empty() ? 1 : cuts[i % cuts.size()]);
    c.tokens.push_back(c.text.substr(at, size));
    at += size;
  }
  for (int i = *rc::gen::inRange(0, 3); i > 0; --i) {
    const size_t at = *rc::gen::inRange<size_t>(0, Words().size());
    const size_t next = *rc::gen::inRange<size_t>(0, Words().size());
    const std::string stop = *rc::gen::arbitrary<bool>() ? Words()[at] : Words()[at] + Words()[next];
    // A request is JSON: its strings are well-formed.
    if (WellFormed(stop) == stop) c.stops.push_back(stop);
  }
  c.chunk = *rc::gen::inRange<size_t>(1, 5);
  c.eos_apart = *rc::gen::arbitrary<bool>();
  c.thinking = *rc::gen::arbitrary<bool>();
  c.one_call = *rc::gen::inRange(0, 4) == 0;
  c.include_stop = *rc::gen::inRange(0, 4) == 0;
  c.max_tokens = *rc::gen::inRange<int64_t>(1, 60);
  c.min_tokens = *rc::gen::inRange<int64_t>(0, 3) == 0 ? *rc::gen::inRange<int64_t>(0, c.max_tokens) : 0;
  return c;
}

void Check(const Case& c) {
  TestApi api(c.tokens);
  api.engine.script = [&](const GenerationRequest&, int) {
    return FakeScript{api.AllSteps(), c.chunk, c.eos_apart, false};
  };
  Json body = UserChat();
  body["max_tokens"] = c.max_tokens;
  body["min_tokens"] = c.min_tokens;
  body["stop"] = c.stops;
  body["include_stop_str_in_output"] = c.include_stop;
  body["chat_template_kwargs"] = {{"thinking", c.thinking}};
  body["parallel_tool_calls"] = !c.one_call;
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  body["logprobs"] = true;
  body["top_logprobs"] = 1;
  const SeenAnswer whole = ChatWholeSeen(*api.Post("/v1/chat/completions", body));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const SeenAnswer stream = ChatStreamSeen(*api.Post("/v1/chat/completions", body));
  RC_ASSERT(whole == stream);
  // Other chunks of the same tokens say the same.
  api.engine.script = [&](const GenerationRequest&, int) { return FakeScript{api.AllSteps(), 1, false, false}; };
  RC_ASSERT(ChatStreamSeen(*api.Post("/v1/chat/completions", body)) == whole);
  const Seen& seen = whole.choices.at(0);
  for (const std::string& stop : c.stops) {
    if (c.min_tokens == 0 && !c.include_stop) RC_ASSERT(seen.content.find(stop) == std::string::npos);
  }
  if (seen.finish != "length" && seen.stop.is_null() && seen.calls.empty()) {
    // Nothing was cut: reasoning and content are the text, made well-formed, but for the tag.
    const std::string expected = WellFormed(c.text);
    const bool closed = c.thinking && expected.find("</think>") != std::string::npos;
    if (expected.find("｜") == std::string::npos) {
      RC_ASSERT(seen.reasoning + (closed ? "</think>" : "") + seen.content == expected);
    }
  }

  Json raw = {{"prompt", "x"},
              {"max_tokens", c.max_tokens},
              {"min_tokens", c.min_tokens},
              {"stop", c.stops},
              {"logprobs", 1},
              {"include_stop_str_in_output", c.include_stop},
              {"echo", true}};
  const SeenAnswer raw_whole = CompletionWholeSeen(*api.Post("/v1/completions", raw));
  raw["stream"] = true;
  raw["stream_options"] = {{"include_usage", true}};
  RC_ASSERT(CompletionStreamSeen(*api.Post("/v1/completions", raw)) == raw_whole);

  Json message = {{"max_tokens", c.max_tokens},
                  {"messages", body["messages"]},
                  {"stop_sequences", c.stops},
                  {"thinking", {{"type", c.thinking ? "adaptive" : "disabled"}}},
                  {"tools", {{{"name", "f"}}}}};
  const SeenAnswer message_whole = MessagesWholeSeen(*api.Post("/v1/messages", message));
  message["stream"] = true;
  RC_ASSERT(MessagesStreamSeen(*api.Post("/v1/messages", message)) == message_whole);

  Json response = {
      {"input", "hi"}, {"max_output_tokens", c.max_tokens}, {"tools", {{{"type", "function"}, {"name", "f"}}}}};
  const SeenAnswer response_whole = ResponsesWholeSeen(*api.Post("/v1/responses", response));
  response["stream"] = true;
  RC_ASSERT(ResponsesStreamSeen(*api.Post("/v1/responses", response)) == response_whole);
}

TEST(ApiProperty, StreamsSayWhatWholeAnswersSay) {
  EXPECT_TRUE(rc::check([] { Check(RandomCase()); }));
}

}  // namespace
}  // namespace senko::api
