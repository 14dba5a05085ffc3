// CPU time of this room per generated token: from the engine's chunk to the event's bytes. One token a chunk, which is
// the dearest way to get them.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "api/chat_writer.h"
#include "api/completion_writer.h"
#include "api/messages_writer.h"
#include "api/responses_writer.h"

namespace senko::api {
namespace {

// The released tokenizer where tests/text/make_v41_tokenizer.py puts it, else the bundled one; the label says which.
const text::Tokenizer& TheTokenizer(benchmark::State& state) {
  static const std::filesystem::path released = SENKO_SOURCE_DIR "/.cache/tokenizers/deepseek-v4.1/tokenizer.json";
  static const bool has_released = std::filesystem::exists(released);
  static const text::Tokenizer tokenizer =
      text::Tokenizer::FromFile(has_released ? released : SENKO_SOURCE_DIR "/models/tiny/tokenizer.json");
  state.SetLabel(has_released ? "released tokenizer" : "bundled tokenizer");
  return tokenizer;
}

class NullExchange : public Exchange {
 public:
  void Reply(int, std::string_view, std::string body, std::vector<std::pair<std::string, std::string>>) override {
    bytes += body.size();
  }
  void BeginEvents() override {}
  void Event(std::string data, std::string_view) override { bytes += data.size(); }
  void EndEvents() override {}
  bool gone() const override { return false; }
  void OnGone(std::function<void()>) override {}
  size_t bytes = 0;
};

enum class Api { kChat, kChatLogprobs, kChatStops, kCompletions, kResponses, kMessages };

void Token(benchmark::State& state, Api api, bool call) {
  const text::Tokenizer& tokenizer = TheTokenizer(state);
  std::string text =
      call ? "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"p\" string=\"true\">" : "";
  while (text.size() < 20000)
    text += "The quick \"brown\" fox, 1234 times:\n\nint main() { return x[i]; }\n東京は日本の首都です。🌍\n";
  if (call) text += "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::vector<int32_t> ids = tokenizer.Encode(text, text::AddedTokens::kAll);
  TextOptions options;
  if (api == Api::kChatStops) options.stops = {"\nHuman:", "END", "<|stop|>", "Observation"};
  options.logprobs = api == Api::kChatLogprobs;
  const TurnOpening turn;
  const auto exchange = std::make_shared<NullExchange>();
  for (auto _ : state) {
    std::unique_ptr<AnswerWriter> writer;
    ChatStyle chat;
    chat.stream = true;
    if (options.logprobs) chat.logprobs.emplace(tokenizer, 5, true);
    switch (api) {
      case Api::kCompletions: {
        CompletionStyle style;
        style.stream = true;
        writer = MakeCompletionWriter(exchange, style);
        break;
      }
      case Api::kResponses:
        writer = MakeResponsesWriter(exchange, {true, ""});
        break;
      case Api::kMessages:
        writer = MakeMessagesWriter(exchange, {true, true});
        break;
      default:
        writer = MakeChatWriter(exchange, chat);
    }
    Answer answer;
    answer.id = "chatcmpl-0123456789abcdefghijklmn";
    answer.model = "deepseek-v4.1-flash";
    answer.choices.resize(1);
    answer.prompt_logprobs.resize(1);
    ChoiceText choice(tokenizer, options, api == Api::kCompletions ? nullptr : &turn);
    std::vector<Piece> pieces;
    OutputChunk chunk;
    chunk.tokens.resize(1);
    for (const int32_t id : ids) {
      chunk.tokens[0].token = id;
      if (options.logprobs) {
        chunk.tokens[0].logprob = TokenLogprob{id, -0.5f, 1};
        chunk.tokens[0].top.assign(5, TokenLogprob{id, -0.5f, 1});
      }
      pieces.clear();
      choice.Push(chunk, 1, &pieces);
      if (pieces.empty()) continue;
      Record(pieces, "call_", false, &answer.choices[0]);
      writer->Pieces(answer, 0, pieces);
    }
  }
  const auto tokens = static_cast<double>(state.iterations()) * static_cast<double>(ids.size());
  state.counters["us/token"] =
      benchmark::Counter(tokens / 1e6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["bytes/token"] = static_cast<double>(exchange->bytes) / tokens;
}
BENCHMARK_CAPTURE(Token, chat, Api::kChat, false);
BENCHMARK_CAPTURE(Token, chat_call, Api::kChat, true);
BENCHMARK_CAPTURE(Token, chat_stops, Api::kChatStops, false);
BENCHMARK_CAPTURE(Token, chat_logprobs5, Api::kChatLogprobs, false);
BENCHMARK_CAPTURE(Token, completions, Api::kCompletions, false);
BENCHMARK_CAPTURE(Token, responses, Api::kResponses, false);
BENCHMARK_CAPTURE(Token, messages, Api::kMessages, false);

}  // namespace
}  // namespace senko::api
