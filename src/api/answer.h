// An answer while it is put together, and what writes it in one API's shape.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/choice_text.h"
#include "api/errors.h"
#include "senko/senko.h"

namespace senko::api {

struct CallRecord {
  std::string id;  // "call_..."
  std::string name;
  std::string arguments;  // JSON; one object once the call has ended
};

// All that one choice has said so far.
struct ChoiceRecord {
  std::string reasoning, content;
  std::vector<CallRecord> calls;
  std::vector<TokenOutput> reasoning_tokens, content_tokens;  // with logprobs
  std::optional<Ending> ending;
  std::optional<std::string> stop;  // the stop string or token that ended it
  std::optional<int32_t> stop_token;
};

struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
};

struct Answer {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
  AnswerUsage usage;
  std::vector<ChoiceRecord> choices;
  std::vector<std::vector<TokenOutput>> prompt_logprobs;  // of each prompt, where asked for
};

// One API's way of writing an answer, whole or as events. The answer already holds what a call tells. Calls come from
// one thread at a time, in this order: Scheduled once; Pieces and ChoiceEnded; then Done, or at any time Failed. After
// those two nothing comes. Writers may throw; the request then fails.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // The prompt's usage and, where asked for, its logprobs are known.
  virtual void Scheduled(const Answer& answer) = 0;
  // `pieces` are of one choice; a call's id is in the answer.
  virtual void Pieces(const Answer& answer, int choice, std::vector<Piece>& pieces) = 0;
  virtual void ChoiceEnded(const Answer& answer, int choice) = 0;
  virtual void Done(const Answer& answer) = 0;
  virtual void Failed(const Answer& answer, const ErrorReply& error) = 0;
};

// Adds pieces to the record; calls get ids that begin with `call_prefix`. `keep_tokens` keeps logprobs, too.
void Record(const std::vector<Piece>& pieces, std::string_view call_prefix, bool keep_tokens, ChoiceRecord* record);

// OpenAI's usage object: prompt_tokens, completion_tokens, total_tokens and their details.
std::string& AppendUsage(const AnswerUsage& usage, std::string* out);

}  // namespace senko::api
