// What the API tells about its requests. The server's counters implement the one, its log the other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace senko::api {

// One request, when it has been answered. Times are seconds since it arrived; negative: that never happened.
struct RequestRecord {
  std::string id;
  uint64_t number = 0;     // HttpRequest::number
  std::string route;       // "/v1/chat/completions"
  std::string model;       // as answers name it
  bool submitted = false;  // the engine took it: neither refused nor answered without the engine
  int status = 0;          // of the HTTP answer; 499: the client left
  bool stream = false;
  std::string finish;  // "stop", "length", "tool_calls", of the first choice; "error", "cancelled"
  std::string error;   // what went wrong, for the log alone
  int choices = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  double queue_s = -1;  // until it was admitted
  double first_token_s = -1;
  double total_s = -1;
};

// Called from the API's threads, several at a time; must not block.
class RequestMetrics {
 public:
  virtual ~RequestMetrics() = default;
  virtual void OnScheduled(double queue_s) = 0;
  virtual void OnFirstToken(double since_arrival_s) = 0;
  // `tokens` of one choice came `gap_s` after those before them.
  virtual void OnTokens(int64_t tokens, double gap_s) = 0;
  // Of requests that the engine took; others neither succeed nor fail in serving the model.
  virtual void OnFinished(const RequestRecord& record) = 0;
};

// One call per request.
using RequestLog = std::function<void(const RequestRecord&)>;

}  // namespace senko::api
