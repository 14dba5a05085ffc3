// One HTTP/1 request out of bytes that come in any pieces: Boost.Beast's grammar under this server's stricter rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/exchange.h"
#include "server/options.h"

namespace senko::server {

// Belongs to one request of one connection.
class RequestParser {
 public:
  // `options` outlives the parser.
  explicit RequestParser(const HttpOptions& options);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  enum class Progress {
    kMore,  // wants more bytes; what was not used must come again, with more after it
    kHead,  // once, when the head is complete; complete() tells whether that was all
    kDone,  // the body is complete too; what was not used belongs to the next request
    kBad,   // fault() says why; the connection cannot go on
  };
  Progress Feed(std::string_view bytes, size_t* used);

  struct Fault {
    int status = 400;
    std::string message;
  };
  const Fault& fault() const;

  // From kHead on: everything but the body, which is there at kDone. `path` is decoded.
  api::HttpRequest& request();
  bool complete() const;
  bool http_1_0() const;
  bool keep_alive() const;
  bool chunked() const;
  std::optional<uint64_t> content_length() const;
  uint64_t body_bytes() const;  // received so far

  // The body is read but not kept.
  void DiscardBody();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace senko::server
