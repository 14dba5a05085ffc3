// Answers of /v1/responses.
#pragma once

#include <memory>
#include <string>

#include "api/answer.h"
#include "api/exchange.h"

namespace senko::api {

struct ResponsesStyle {
  bool stream = false;
  // What the response object repeats of the request: JSON members, separated by commas.
  std::string repeated;
};

// Output items in the order in which they are written: reasoning, message, function calls. Events come in the published
// order, numbered from 0; an item is announced, filled, closed before the next. A whole answer is the response object
// that response.completed would carry.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(std::shared_ptr<Exchange> exchange, ResponsesStyle style);

}  // namespace senko::api
