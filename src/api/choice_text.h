// What one choice says: token ids in, pieces of reasoning, content and calls out.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/sampling_fields.h"
#include "senko/senko.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/turn_parser.h"

namespace senko::api {

struct Piece {
  using Kind = text::TurnEvent::Kind;
  Kind kind = Kind::kContent;
  std::string text;                 // well-formed; may be empty where only `tokens` matter
  int call = -1;                    // number of the call
  bool cut = false;                 // kToolCallEnd: the turn ended inside the call
  std::vector<TokenOutput> tokens;  // with logprobs: those whose first byte lies in `text`
};

enum class Ending { kStop, kLength, kToolCalls };
std::string_view EndingName(Ending ending);  // OpenAI's finish_reason

// How an answer begins that is a turn of a chat.
struct TurnOpening {
  text::TurnStart start = text::TurnStart::kContent;
  std::string opened;       // of a call that the prompt opened: read before the first token
  bool reads_calls = true;  // otherwise their markup is text: tool_choice "none"
};

// One choice, from its tokens in order. What comes out depends on the tokens alone, not on how they were chunked.
// Rules: stop strings are looked for in the content only; the token that ended the answer has no text (unless it is a
// stop token and include_stop); with one_call nothing follows the first whole call; behind the calls' block nothing is
// read. Not thread-safe; the tokenizer must outlive it.
class ChoiceText {
 public:
  // Without `opening` everything is content.
  ChoiceText(const text::Tokenizer& tokenizer, const TextOptions& options, const TurnOpening* opening);

  // Appends what the chunk says. `eos` ends an answer as the engine's limits say. Once ended(), chunks are ignored.
  // True: the choice has just ended and the engine does not know (a stop string, a finished call).
  bool Push(const OutputChunk& chunk, int32_t eos, std::vector<Piece>* pieces);

  bool ended() const { return ending_.has_value(); }
  Ending ending() const { return *ending_; }
  const std::optional<std::string>& stop() const { return stop_; }   // the stop string that ended it
  std::optional<int32_t> stop_token() const { return stop_token_; }  // or the stop token, never EOS
  int64_t tokens() const { return tokens_; }                         // up to the one that ended it, which counts
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  size_t tokens_held() const { return pending_.size(); }  // with logprobs: of text that has not been passed on
  // The sampled ids of a turn whose block of calls is complete, without what ended it; for remembering.
  bool has_whole_calls() const { return whole_calls_; }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  struct Pending {  // a token whose text is not yet passed on
    TokenOutput output;
    uint64_t at;  // where its text begins
  };

  void PushToken(const TokenOutput& token, std::vector<Piece>* pieces);
  void Read(std::string_view text, std::vector<Piece>* pieces);
  void Handle(const text::TurnEvent& event, std::vector<Piece>* pieces);
  void Content(std::string_view text, uint64_t at, std::vector<Piece>* pieces);
  void Emit(Piece::Kind kind, std::string text, int call, std::vector<Piece>* pieces);
  void TakeTokens(uint64_t begin, uint64_t end, Piece* piece);
  void CloseContent(std::vector<Piece>* pieces);
  void FinishText(std::vector<Piece>* pieces);
  void Decide(FinishReason finish, bool in_call);

  TextOptions options_;
  const text::Tokenizer* tokenizer_;
  text::Detokenizer detokenizer_;
  text::StopMatcher stops_;
  std::unique_ptr<text::TurnParser> parser_;
  std::vector<text::TurnEvent> events_;  // scratch
  std::vector<text::TurnEvent> opening_events_;
  std::deque<Pending> pending_;
  std::vector<int32_t> ids_;
  uint64_t read_bytes_ = 0;     // of text so far
  uint64_t content_at_ = 0;     // where the content begins
  uint64_t content_bytes_ = 0;  // of it, passed on
  bool in_content_ = false;
  bool whole_calls_ = false;
  bool finishing_ = false;  // no more tokens: what ends now is ended by that
  int calls_ = 0;
  int64_t tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  std::optional<Ending> ending_;
  std::optional<std::string> stop_;
  std::optional<int32_t> stop_token_;
};

}  // namespace senko::api
