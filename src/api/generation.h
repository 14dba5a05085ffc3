// One request while the engine works on it: takes what the engine's thread delivers, has it turned into text on an
// output worker, and hands it to the writer.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "api/answer.h"
#include "api/call_memory.h"
#include "api/context.h"

namespace senko::api {

// What a route makes of a request.
struct AnswerPlan {
  std::vector<GenerationRequest> requests;  // one for each prompt, all with the same n
  TextOptions text;
  std::optional<TurnOpening> turn;  // a chat's
  // Where the calls of this turn are remembered; their ids begin with what the prompt wrote behind the turn's header.
  struct Memory {
    MemoryScope scope;
    std::vector<int32_t> opened_ids;
    bool thinking = false;
  };
  std::optional<Memory> memory;
  std::string_view call_prefix = "call_";
  std::unique_ptr<AnswerWriter> writer;
  std::string id;  // of the answer
  bool stream = false;
};

// Submits the prompts and sees the answer through. Errors are those of Engine::Submit; nothing has been sent then and
// nothing runs. When it returns, an event stream has been opened if `plan.stream`.
//
// Threads: the engine's thread appends to the request's own queue and posts the request to the output workers, unless
// it is there already; so its chunks are handled in order, by one worker at a time. What may wait is bounded by the
// engine's pace and, as events, by the exchange's limit of unsent bytes: a client that leaves or lags is `gone`, and
// its request is cancelled.
void StartGeneration(std::shared_ptr<Incoming> incoming, AnswerPlan plan);

}  // namespace senko::api
