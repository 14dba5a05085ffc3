// One line per request.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

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
};

// Called on an I/O thread; must not block.
using AccessLog = std::function<void(const AccessRecord&)>;

// {"time": ..., "id": ..., ...} on one line, without its end. At most about 2 kB.
std::string AccessLine(const AccessRecord& record);

// Writes lines to a file ("-": standard error) on a thread of its own. When the disk is slower than the requests the
// oldest waiting lines are dropped. Errors: kIo naming the file.
AccessLog MakeAccessLog(const std::string& path);

}  // namespace senko::server
