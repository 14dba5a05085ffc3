// The API's routes. Each lives in a file of its own: it reads a request, plans an answer and picks its writer.
#pragma once

#include <vector>

#include "api/context.h"
#include "api/exchange.h"

namespace senko::api {

// `context` must outlive the routes and every request.
std::vector<Route> MakeRoutes(ApiContext& context);

// What a route does once the body has been read in: answers, or throws.
using RouteWork = void (*)(const std::shared_ptr<Incoming>& incoming);

void ChatCompletions(const std::shared_ptr<Incoming>& incoming);
void Completions(const std::shared_ptr<Incoming>& incoming);
void Responses(const std::shared_ptr<Incoming>& incoming);
void Messages(const std::shared_ptr<Incoming>& incoming);
void CountTokens(const std::shared_ptr<Incoming>& incoming);
void Tokenize(const std::shared_ptr<Incoming>& incoming);
void Detokenize(const std::shared_ptr<Incoming>& incoming);
void TokenizerInfo(const std::shared_ptr<Incoming>& incoming);
void ListModels(const std::shared_ptr<Incoming>& incoming);
void ShowModel(const std::shared_ptr<Incoming>& incoming);

// An answer that needs no engine.
void ReplyNow(const Incoming& incoming, std::string body);

}  // namespace senko::api
