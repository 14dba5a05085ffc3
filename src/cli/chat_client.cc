#include "cli/chat_client.h"

#include <curl/curl.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "cli/sse_reader.h"

namespace senko::cli {
namespace {

constexpr size_t kMaxErrorBytes = size_t{1} << 16;

struct Transfer {
  std::function<void(std::string_view)> on_bytes;
  const std::atomic<bool>* stop = nullptr;
};

size_t OnBytes(char* data, size_t size, size_t count, void* user) {
  static_cast<Transfer*>(user)->on_bytes({data, size * count});
  return size * count;
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* transfer = static_cast<const Transfer*>(user);
  return transfer->stop != nullptr && *transfer->stop ? 1 : 0;
}

struct Library {
  Library() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~Library() { curl_global_cleanup(); }
};

// The status, or 0 when `stop` ended it. An empty body is a GET.
long Request(const ChatSettings& settings, const std::string& path, const std::string& body, Transfer* transfer) {
  static const Library library;
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), &curl_easy_cleanup);
  if (!curl) throw Error(ErrorCode::kResourceExhausted, "no memory for a connection");
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr, &curl_slist_free_all);
  auto add = [&](const std::string& line) { headers.reset(curl_slist_append(headers.release(), line.c_str())); };
  add("Content-Type: application/json");
  if (!settings.api_key.empty()) add("Authorization: Bearer " + settings.api_key);
  const std::string url = settings.url + path;
  char reason[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 10L);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &OnBytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, &OnProgress);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, transfer);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  if (!body.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  }
  const CURLcode code = curl_easy_perform(curl.get());
  if (code == CURLE_ABORTED_BY_CALLBACK) return 0;
  if (code != CURLE_OK) {
    throw Error(ErrorCode::kIo, url + ": " + (reason[0] != '\0' ? reason : curl_easy_strerror(code)));
  }
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

// An Error's text ends at its first zero byte.
std::string ShownZeros(const std::string& text) {
  std::string shown;
  for (const char c : text) shown += c == '\0' ? std::string("\xe2\x90\x80") : std::string(1, c);  // U+2400
  return shown;
}

// The server's words in an error body, or the body itself.
std::string ErrorText(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return ShownZeros(error["message"].get<std::string>());
    }
  }
  return ShownZeros(body);
}

std::string StringAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t NumberAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string FirstModel(const ChatSettings& settings) {
  std::string body;
  Transfer transfer;
  transfer.on_bytes = [&body](std::string_view bytes) {
    if (body.size() < kMaxErrorBytes) body.append(bytes);
  };
  const long status = Request(settings, "/v1/models", "", &transfer);
  if (status != 200) {
    throw Error(ErrorCode::kIo, settings.url + "/v1/models: status " + std::to_string(status) + ": " + ErrorText(body));
  }
  const Json models = ParseJson(body, settings.url + "/v1/models");
  const auto data = models.find("data");
  if (data == models.end() || !data->is_array() || data->empty() || StringAt((*data)[0], "id").empty()) {
    throw Error(ErrorCode::kIo, settings.url + "/v1/models: names no model");
  }
  return StringAt((*data)[0], "id");
}

// What the chunks of a stream add up to.
struct Answer {
  std::string content, reasoning, finish, error;
  ChatUsage usage;

  void Take(std::string_view data, const OnPiece& on_piece) {
    if (data == "[DONE]") return;
    const Json chunk = Json::parse(data, nullptr, false);
    if (!chunk.is_object()) return;
    if (chunk.contains("error")) error = ErrorText(std::string(data));
    if (const auto u = chunk.find("usage"); u != chunk.end() && u->is_object()) {
      usage.prompt_tokens = NumberAt(*u, "prompt_tokens");
      usage.completion_tokens = NumberAt(*u, "completion_tokens");
      if (const auto d = u->find("prompt_tokens_details"); d != u->end() && d->is_object()) {
        usage.cached_tokens = NumberAt(*d, "cached_tokens");
      }
    }
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array() || choices->empty() || !(*choices)[0].is_object()) return;
    const Json& choice = (*choices)[0];
    if (const std::string reason = StringAt(choice, "finish_reason"); !reason.empty()) finish = reason;
    const auto delta = choice.find("delta");
    if (delta == choice.end() || !delta->is_object()) return;
    const std::string more_reasoning = StringAt(*delta, "reasoning_content"), more = StringAt(*delta, "content");
    reasoning += more_reasoning;
    content += more;
    if (!more_reasoning.empty() || !more.empty()) on_piece(more_reasoning, more);
  }
};

}  // namespace

ChatClient::ChatClient(ChatSettings settings) : settings_(std::move(settings)), model_(settings_.model) {
  while (!settings_.url.empty() && settings_.url.back() == '/') settings_.url.pop_back();
  if (model_.empty()) model_ = FirstModel(settings_);
}

std::string ChatClient::Say(const std::string& text, const std::atomic<bool>& stop, const OnPiece& on_piece) {
  Json messages = Json::array();
  if (!settings_.system.empty()) messages.push_back({{"role", "system"}, {"content", settings_.system}});
  for (const Json& message : messages_) messages.push_back(message);
  messages.push_back({{"role", "user"}, {"content", text}});
  Json request = {{"model", model_},
                  {"messages", std::move(messages)},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}},
                  {"temperature", settings_.temperature},
                  {"chat_template_kwargs", {{"thinking", settings_.thinking}}}};
  if (settings_.max_tokens > 0) request["max_tokens"] = settings_.max_tokens;

  Answer answer;
  std::string raw;  // in case it is no stream but an error
  SseReader reader([&](std::string_view data) { answer.Take(data, on_piece); });
  Transfer transfer;
  transfer.stop = &stop;
  transfer.on_bytes = [&](std::string_view bytes) {
    if (raw.size() < kMaxErrorBytes) raw.append(bytes);
    reader.Feed(bytes);
  };
  const long status = Request(settings_, "/v1/chat/completions", DumpJson(request), &transfer);
  if (status != 0 && status != 200) {
    throw Error(ErrorCode::kIo, "status " + std::to_string(status) + ": " + ErrorText(raw));
  }
  if (!answer.error.empty()) throw Error(ErrorCode::kIo, answer.error);
  usage_ = answer.usage;
  messages_.push_back({{"role", "user"}, {"content", text}});
  Json reply = {{"role", "assistant"}, {"content", answer.content}};
  if (!answer.reasoning.empty()) reply["reasoning_content"] = answer.reasoning;
  messages_.push_back(std::move(reply));
  return status == 0 ? "stopped" : answer.finish;
}

}  // namespace senko::cli
