#include "api/routes.h"

#include "api/read_text.h"

namespace senko::api {
namespace {

void Report(const Incoming& incoming, int status, std::string_view finish, std::string_view error) {
  RequestRecord record;
  record.status = status;
  record.finish = finish;
  record.error = error;
  incoming.context->Report(incoming, std::move(record));
}

void Refuse(const Incoming& incoming, const std::exception& error) {
  const ErrorReply reply = DescribeError(error, incoming.style);
  ReplyError(*incoming.exchange, reply, incoming.style);
  Report(incoming, reply.status, "error", error.what());
}

void Answer(const std::shared_ptr<Incoming>& incoming, RouteWork work) {
  try {
    if (incoming->exchange->gone()) return Report(*incoming, 499, "cancelled", {});
    work(incoming);
  } catch (const ClientGone&) {
    Report(*incoming, 499, "cancelled", {});
  } catch (const std::exception& error) {
    Refuse(*incoming, error);
  }
}

// No exception passes: the caller may be a worker. Where memory does not suffice for a refusal either, the exchange is
// left to its last owner, who answers 500.
void Work(const std::shared_ptr<Incoming>& incoming, RouteWork work) noexcept {
  try {
    Answer(incoming, work);
  } catch (const std::exception&) {
  }
}

Handler MakeHandler(ApiContext& context, std::string_view route, ErrorStyle style, RouteWork work) {
  return [&context, route, style, work](HttpRequest request, std::shared_ptr<Exchange> exchange) {
    const auto incoming = std::make_shared<Incoming>();
    incoming->context = &context;
    incoming->http = std::move(request);
    incoming->exchange = std::move(exchange);
    incoming->route = route;
    incoming->style = style;
    incoming->arrived = std::chrono::steady_clock::now();
    try {
      context.ReadSoon(incoming->http.body.size(), [incoming, work] { Work(incoming, work); });
    } catch (const std::exception& error) {
      Refuse(*incoming, error);
    }
  };
}

}  // namespace

void ReplyNow(const Incoming& incoming, std::string body) {
  incoming.exchange->Reply(200, "application/json", std::move(body));
  Report(incoming, 200, "stop", {});
}

std::vector<Route> MakeRoutes(ApiContext& context) {
  struct Entry {
    const char* method;
    const char* path;
    RouteWork work;
    ErrorStyle style = ErrorStyle::kOpenAi;
  };
  static constexpr Entry kEntries[] = {
      {"POST", "/v1/chat/completions", ChatCompletions},
      {"POST", "/v1/completions", Completions},
      {"POST", "/v1/responses", Responses},
      {"POST", "/v1/messages", Messages, ErrorStyle::kAnthropic},
      {"POST", "/v1/messages/count_tokens", CountTokens, ErrorStyle::kAnthropic},
      {"GET", "/v1/models", ListModels},
      {"GET", "/v1/models/", ShowModel},
      {"POST", "/tokenize", Tokenize},
      {"POST", "/detokenize", Detokenize},
      {"GET", "/tokenizer_info", TokenizerInfo},
  };
  std::vector<Route> routes;
  for (const Entry& entry : kEntries) {
    routes.push_back({entry.method, entry.path, MakeHandler(context, entry.path, entry.style, entry.work)});
  }
  return routes;
}

}  // namespace senko::api
