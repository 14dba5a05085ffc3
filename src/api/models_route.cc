// GET /v1/models, GET /v1/models/{name}
#include <algorithm>

#include "api/json_text.h"
#include "api/routes.h"

namespace senko::api {
namespace {

void AppendModel(const ApiContext& context, const std::string& name, std::string* out) {
  out->append("{\"id\":");
  AppendString(name, out).append(",\"object\":\"model\",\"created\":");
  AppendNumber(context.started(), out).append(",\"owned_by\":\"senko\",\"root\":");
  AppendString(context.options().model_names[0], out).append(",\"parent\":null,\"max_model_len\":");
  AppendNumber(context.limits().max_model_len, out).push_back('}');
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped =
        text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0;
    out.push_back(escaped ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i]);
    if (escaped) i += 2;
  }
  return out;
}

}  // namespace

void ListModels(const std::shared_ptr<Incoming>& incoming) {
  std::string body = "{\"object\":\"list\",\"data\":[";
  for (const std::string& name : incoming->context->options().model_names) {
    if (body.back() == '}') body += ',';
    AppendModel(*incoming->context, name, &body);
  }
  ReplyNow(*incoming, body += "]}");
}

void ShowModel(const std::shared_ptr<Incoming>& incoming) {
  constexpr std::string_view kPrefix = "/v1/models/";
  const std::string name = PercentDecoded(std::string_view(incoming->http.path).substr(kPrefix.size()));
  const std::vector<std::string>& served = incoming->context->options().model_names;
  if (std::find(served.begin(), served.end(), name) == served.end()) {
    throw RequestError(ErrorCode::kNotFound, "no such model is served here; GET /v1/models lists them", "model",
                       "model_not_found");
  }
  std::string body;
  AppendModel(*incoming->context, name, &body);
  ReplyNow(*incoming, std::move(body));
}

}  // namespace senko::api
