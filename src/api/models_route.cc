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
  const std::string name = incoming->http.path.substr(kPrefix.size());
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
