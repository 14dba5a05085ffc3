// Response heads as bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace senko::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

// "Not Found"; "Unknown" for a status that has no name here.
std::string_view StatusText(int status);

struct ResponseHead {
  int status = 200;
  std::string_view content_type;           // empty: no such header
  std::optional<uint64_t> content_length;  // none with a status of 200: a chunked body, or one that ends with the
                                           // connection when `http_1_0`
  bool http_1_0 = false;
  bool keep_alive = true;
};

// Ends with the empty line. Headers of `extra` with a control character in them are left out: they could end the head.
std::string FormatHead(const ResponseHead& head, const Headers& common, const Headers& extra);

}  // namespace senko::server
