#include "api/errors.h"

#include "api/json_text.h"
#include "text/utf8_stream.h"

namespace senko::api {
namespace {

constexpr size_t kMaxParamBytes = 200;

struct Row {
  ErrorCode code;
  int status;
  std::string_view open_ai_type;
  int anthropic_status;
  std::string_view anthropic_type;
  int retry_after_s;
};
// A request's own text is the only file that a handler reads, so kCorrupt is the client's here.
constexpr Row kRows[] = {
    {ErrorCode::kInvalidArgument, 400, "invalid_request_error", 400, "invalid_request_error", 0},
    {ErrorCode::kCorrupt, 400, "invalid_request_error", 400, "invalid_request_error", 0},
    {ErrorCode::kUnsupported, 400, "invalid_request_error", 400, "invalid_request_error", 0},
    {ErrorCode::kNotFound, 404, "not_found_error", 404, "not_found_error", 0},
    {ErrorCode::kResourceExhausted, 503, "server_error", 529, "overloaded_error", 5},
    {ErrorCode::kOverloaded, 503, "server_error", 529, "overloaded_error", 1},
    {ErrorCode::kIo, 500, "server_error", 500, "api_error", 0},
    {ErrorCode::kNumerical, 500, "server_error", 500, "api_error", 0},
};

// Well-formed, of at most `limit` bytes (and the end of a character begun).
std::string Bounded(std::string_view text, size_t limit) {
  std::string out;
  text::Utf8Stream stream;
  stream.Push(text.substr(0, limit), &out);
  if (text.size() > limit) {
    out += "...";
  } else {
    stream.Finish(&out);
  }
  return out;
}

// The rooms below name the field at fault first: "messages[1].prefix is only ...", "tools: the wording ...".
std::string LeadingField(std::string_view message) {
  const size_t end = message.find_first_of(" :");
  const std::string_view word = message.substr(0, end);
  const std::string_view root = word.substr(0, word.find_first_of("[."));
  for (const std::string_view known : {"messages",
                                       "tools",
                                       "effort",
                                       "prompt",
                                       "logit_bias",
                                       "stop_token_ids",
                                       "max_tokens",
                                       "min_tokens",
                                       "logprobs",
                                       "prompt_logprobs",
                                       "n",
                                       "temperature",
                                       "top_p",
                                       "min_p",
                                       "top_k",
                                       "bad_words",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "cache_salt",
                                       "priority"}) {
    if (root == known) return std::string(word);
  }
  return {};
}

}  // namespace

ErrorReply DescribeFailure(ErrorCode code, std::string_view message, ErrorStyle style) {
  ErrorReply reply;
  reply.param = LeadingField(message);
  const bool anthropic = style == ErrorStyle::kAnthropic;
  reply.type = anthropic ? "api_error" : "server_error";
  for (const Row& row : kRows) {
    if (row.code != code) continue;
    reply.status = anthropic ? row.anthropic_status : row.status;
    reply.type = anthropic ? row.anthropic_type : row.open_ai_type;
    reply.retry_after_s = row.retry_after_s;
  }
  // What went wrong inside is for the log.
  reply.message = reply.status == 500 ? "internal error; the server's log has it under this request's id"
                                      : Bounded(message, kMaxErrorMessageBytes);
  if (code == ErrorCode::kUnsupported) reply.code = "unsupported";
  if (code == ErrorCode::kOverloaded || code == ErrorCode::kResourceExhausted) reply.code = "overloaded";
  return reply;
}

ErrorReply DescribeError(const std::exception& error, ErrorStyle style) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours == nullptr) return DescribeFailure(ErrorCode::kNumerical, "", style);
  ErrorReply reply = DescribeFailure(ours->code(), ours->what(), style);
  if (const auto* request = dynamic_cast<const RequestError*>(&error)) {
    reply.param = Bounded(request->param(), kMaxParamBytes);
    if (!request->api_code().empty()) reply.code = request->api_code();
  }
  return reply;
}

std::string ErrorBody(const ErrorReply& reply, ErrorStyle style) {
  std::string body;
  if (style == ErrorStyle::kAnthropic)
    body += "{\"type\":\"error\",";
  else
    body += "{";
  body += "\"error\":{\"type\":";
  AppendString(reply.type, &body);
  body += ",\"message\":";
  AppendString(reply.message, &body);
  if (style == ErrorStyle::kOpenAi) {
    body += ",\"param\":";
    reply.param.empty() ? body.append("null") : AppendString(reply.param, &body);
    body += ",\"code\":";
    reply.code.empty() ? body.append("null") : AppendString(reply.code, &body);
  }
  return body += "}}";
}

void ReplyError(Exchange& exchange, const ErrorReply& reply, ErrorStyle style) {
  std::vector<std::pair<std::string, std::string>> headers;
  if (reply.retry_after_s > 0) headers.emplace_back("Retry-After", std::to_string(reply.retry_after_s));
  exchange.Reply(reply.status, "application/json", ErrorBody(reply, style), std::move(headers));
}

}  // namespace senko::api
