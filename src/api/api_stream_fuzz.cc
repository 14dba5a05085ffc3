// Any tokens and cuts through stop strings, the turn parser and every API's writer: each event is JSON, nothing of DSML
// is left of whole blocks, and every stream ends once and says what the whole answer says.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "api/chat_writer.h"
#include "api/completion_writer.h"
#include "api/fuzz_words.h"
#include "api/messages_writer.h"
#include "api/responses_writer.h"
#include "api/test_tokenizer.h"

namespace senko::api {
namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

class CheckedExchange : public Exchange {
 public:
  explicit CheckedExchange(bool no_dsml) : no_dsml_(no_dsml) {}
  void Reply(int status, std::string_view, std::string body,
             std::vector<std::pair<std::string, std::string>>) override {
    Require(status == 200 && !begun_ && !done);
    Look(body);
    done = true;
  }
  void BeginEvents() override { begun_ = true; }
  void Event(std::string data, std::string_view name) override {
    Require(begun_ && !done);
    if (data != "[DONE]") Look(data);
    const bool ends = data.find("\"finish_reason\":\"") != std::string::npos || name == "message_delta" ||
                      name == "response.completed" || name == "response.incomplete";
    finishes += ends;
  }
  void EndEvents() override {
    Require(begun_ && !done);
    done = true;
  }
  bool gone() const override { return false; }
  void OnGone(std::function<void()>) override {}

  bool done = false;
  int finishes = 0;

 private:
  void Look(const std::string& json) const {
    Require(ParseJson(json, "event").is_object());
    Require(json.find('\n') == std::string::npos);
    if (no_dsml_) Require(json.find("DSML") == std::string::npos);
  }
  bool no_dsml_;
  bool begun_ = false;
};

struct Input {
  std::vector<int32_t> tokens;
  TextOptions text;
  TurnOpening turn;
  bool plain = false;  // a raw completion
  bool by_length = false;
  size_t cut_seed = 1;
  bool no_dsml = true;
};

// Drives one choice through one writer, as a request's worker does.
ChoiceRecord Drive(const text::Tokenizer& tokenizer, const Input& input, size_t cut_seed, bool keep,
                   AnswerWriter* writer) {
  Answer answer;
  answer.id = "id";
  answer.model = "m";
  answer.choices.resize(1);
  answer.prompt_logprobs.resize(1);
  ChoiceText text(tokenizer, input.text, input.plain ? nullptr : &input.turn);
  writer->Scheduled(answer);
  size_t at = 0;
  bool cut = false;  // the last call was
  while (!text.ended()) {
    OutputChunk chunk;
    const size_t size = 1 + cut_seed % 5;
    cut_seed = cut_seed * 31 + 7;
    for (size_t i = 0; i < size && at < input.tokens.size(); ++i, ++at) {
      TokenOutput token;
      token.token = input.tokens[at];
      token.logprob = TokenLogprob{token.token, -1, 1};
      chunk.tokens.push_back(token);
    }
    if (at == input.tokens.size()) {
      chunk.finish = input.by_length ? FinishReason::kLength : FinishReason::kStop;
      if (!input.by_length) {
        chunk.tokens.push_back({kTestEos, TokenLogprob{kTestEos, -1, 1}, {}});
        chunk.stop_token = kTestEos;
      }
    }
    std::vector<Piece> pieces;
    text.Push(chunk, kTestEos, &pieces);
    answer.usage.completion_tokens = text.tokens();
    if (pieces.empty()) continue;
    for (const Piece& piece : pieces) {
      if (piece.kind == Piece::Kind::kToolCallEnd) cut = piece.cut;
    }
    Record(pieces, "call_", keep, &answer.choices[0]);
    writer->Pieces(answer, 0, pieces);
  }
  ChoiceRecord& record = answer.choices[0];
  record.ending = text.ending();
  record.stop = text.stop();
  writer->ChoiceEnded(answer, 0);
  writer->Done(answer);
  for (const CallRecord& call : record.calls) Require(ParseJson(call.arguments, "arguments").is_object());
  Require(!cut || *record.ending != Ending::kToolCalls);  // nobody may run it
  Require(!input.text.one_call || record.calls.size() <= 1);
  return record;
}

void Run(const text::Tokenizer& tokenizer, const Input& input) {
  std::optional<ChoiceRecord> first;
  for (const bool stream : {true, false}) {
    for (int api = 0; api < 4; ++api) {
      const auto exchange = std::make_shared<CheckedExchange>(input.no_dsml);
      if (stream) exchange->BeginEvents();
      std::unique_ptr<AnswerWriter> writer;
      const LogprobsText logprobs(tokenizer, 1, true);
      if (api == 0) {
        ChatStyle style;
        style.stream = stream;
        if (input.text.logprobs) style.logprobs = logprobs;
        writer = MakeChatWriter(exchange, style);
      } else if (api == 1) {
        CompletionStyle style;
        style.stream = stream;
        if (input.text.logprobs) style.logprobs = logprobs;
        writer = MakeCompletionWriter(exchange, style);
      } else if (api == 2) {
        writer = MakeResponsesWriter(exchange, {stream, ""});
      } else {
        writer = MakeMessagesWriter(exchange, {stream, true});
      }
      if (api == 1 && !input.plain) continue;  // calls are not this API's
      if (api != 1 && input.plain) continue;
      const ChoiceRecord record =
          Drive(tokenizer, input, input.cut_seed + static_cast<size_t>(api) * 2 + stream, !stream, writer.get());
      Require(exchange->done);
      Require(!stream || exchange->finishes == 1);
      if (!first) {
        first = record;
        continue;
      }
      Require(record.reasoning == first->reasoning && record.content == first->content &&
              record.ending == first->ending);
      Require(record.calls.size() == first->calls.size());
      for (size_t i = 0; i < record.calls.size(); ++i) Require(record.calls[i].arguments == first->calls[i].arguments);
    }
  }
}

}  // namespace
}  // namespace senko::api

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace senko::api;
  static const std::vector<std::string>& words = *new std::vector<std::string>([] {
    std::vector<std::string> all = Words();
    all.push_back(BlockWord());
    return all;
  }());
  static const senko::text::Tokenizer& tokenizer = *new senko::text::Tokenizer(ScriptTokenizer(words));
  if (size < 4) return 0;
  Input input;
  const uint8_t flags = data[0];
  input.plain = flags & 1;
  input.turn.start = flags & 2 ? senko::text::TurnStart::kReasoning : senko::text::TurnStart::kContent;
  input.text.one_call = flags & 4;
  input.text.include_stop = flags & 8;
  input.by_length = flags & 16;
  input.text.logprobs = flags & 32;
  input.text.min_tokens = flags & 64 ? 3 : 0;
  input.cut_seed = data[1];
  for (size_t i = 2; i < 4; ++i) {  // two stops of one or two words
    const size_t first = data[i] % 64, second = data[i] / 64 + 1;
    if (first >= kFirstDsmlWord) continue;
    std::string stop = words[first] + (data[i] >= 128 ? words[second] : "");
    senko::text::Utf8Stream utf8;
    std::string well_formed;
    utf8.Push(stop, &well_formed);
    utf8.Finish(&well_formed);
    input.text.stops.push_back(well_formed);
  }
  for (size_t i = 4; i < size; ++i) {
    const size_t word = data[i];
    if (word < words.size()) {
      input.tokens.push_back(kFirstStep + static_cast<int32_t>(word));
      // Parts of tags may be quoted; a block is read away, unless a raw completion shows it.
      if (word >= kFirstDsmlWord && word + 1 < words.size()) input.no_dsml = false;
      if (input.plain && word + 1 == words.size()) input.no_dsml = false;
      // A logprob shows its whole token, and a token of ours may hold a block with what stands before it.
      if (input.text.logprobs && word + 1 == words.size()) input.no_dsml = false;
    } else {
      input.tokens.push_back(kTestControls + static_cast<int32_t>(word));
    }
  }
  // Single bytes may spell a part of a tag as well.
  std::string spelled;
  for (const int32_t token : input.tokens) {
    if (token != kFirstStep + static_cast<int32_t>(words.size()) - 1) spelled += tokenizer.TokenBytes(token);
  }
  if (spelled.find("DSML") != std::string::npos) input.no_dsml = false;
  Run(tokenizer, input);
  return 0;
}
