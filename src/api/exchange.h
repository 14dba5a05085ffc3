// One HTTP request and its answer, as the API routes see them: no socket, no library type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace senko::api {

// Complete and within the limits; the body is any bytes.
struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // "/v1/chat/completions", decoded, without the query
  std::string query;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string id;       // X-Request-Id, or made up
  std::string api_key;  // the key it was let in with; empty without keys
  uint64_t number = 0;  // of this request since the start, from 1: unlike `id` it is nobody else's

  // The first header of that name, or nothing.
  std::string_view Header(std::string_view lower_case_name) const {
    for (const auto& [name, value] : headers) {
      if (name == lower_case_name) return value;
    }
    return {};
  }
};

// How a request is answered: either one Reply, or BeginEvents, Event..., EndEvents. Thread-safe; never blocks. What is
// sent after the client has gone, or after the end, is dropped. Kept alive by whoever may still answer; when the last
// owner lets go of an exchange without an answer the client gets a 500.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void Reply(int status, std::string_view content_type, std::string body,
                     std::vector<std::pair<std::string, std::string>> headers = {}) = 0;

  // Status 200 and text/event-stream at once; from here on a comment line is sent whenever nothing else was for a
  // while.
  virtual void BeginEvents() = 0;
  // One event: "event: <name>\n" unless `name` is empty, then "data: <data>\n\n". `data` holds no line break.
  virtual void Event(std::string data, std::string_view name = {}) = 0;
  virtual void EndEvents() = 0;

  // The client closed the connection, or reads so slowly that its unsent bytes passed a limit.
  virtual bool gone() const = 0;
  // `callback` runs once, on an I/O thread, as soon as the client has gone; at once and on the caller's if it has
  // already. Never after the end of the answer. Replaces an earlier callback.
  virtual void OnGone(std::function<void()> callback) = 0;

  // The status of the error that was put in the place of a Reply, or at a stream's end, because what waits for slow
  // clients left no room to keep what was said; 0: there was room. A stream that is cut so is `gone`, too.
  virtual int refused() const { return 0; }
};

// Answers one request, now or later and from any thread. Called on an I/O thread, which must not wait for long work.
// Errors: senko::Error becomes an error body (api/errors.h).
using Handler = std::function<void(HttpRequest request, std::shared_ptr<Exchange> exchange)>;

struct Route {
  std::string method;
  std::string path;  // exact, or a prefix when it ends with '/'
  Handler handler;
  bool needs_key = true;
};

}  // namespace senko::api
