// What the server knows of a request when its answer has left, as a line of its log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "api/metrics.h"

namespace senko::server {

struct AccessRecord {
  std::string id;        // X-Request-Id
  std::string method;    // empty when the head could not be read
  std::string path;      // without the query, which may hold secrets
  int status = 0;        // 499: the client left before an answer began
  uint64_t bytes = 0;    // of the response, head included
  double seconds = 0;    // from the request's first byte to the answer's last
  std::string key_hash;  // ApiKeys::short_hash; empty without a key
  bool gone = false;     // the client left before the answer's end
  bool no_room = false;  // it was refused, or its stream cut, for want of room among the answers that wait
  uint64_t number = 0;   // api::HttpRequest::number where a handler had it; 0: the server answered by itself
};

// Called on an I/O thread; must not block.
using AccessLog = std::function<void(const AccessRecord&)>;

// {"time": ..., "id": ..., ...} on one line, without its end. At most about 3 kB; no key, and nothing of what was asked
// or answered. `request` may be null: what the API told of the same request.
std::string AccessLine(const AccessRecord& record, const api::RequestRecord* request = nullptr);

// Lines to a file, to which they are added ("-": standard error), written on a thread of its own. What takes them more
// slowly than they come, or not at all, costs lines: `dropped` counts this log's. Both may be called from any thread
// and do not block.
struct LineLog {
  std::function<void(std::string_view line)> write;
  std::function<uint64_t()> dropped;
};
// Errors: kIo naming the file.
LineLog OpenLineLog(const std::string& path);

}  // namespace senko::server
