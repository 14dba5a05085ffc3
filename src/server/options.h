// What an operator of the HTTP server may set. Names follow vLLM's and uvicorn's flags where the same thing exists.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace senko::server {

// Least and most of a number.
struct Bounds {
  int64_t low, high;
};
inline constexpr Bounds kPorts{0, 65535};
inline constexpr Bounds kHttpThreads{1, 64};
inline constexpr Bounds kRates{0, 1 << 30};            // requests per minute
inline constexpr Bounds kConnections{1, 1 << 20};      // and requests in flight
inline constexpr Bounds kHeaderBytes{1024, 16 << 20};  // of one request
inline constexpr Bounds kHeaderCounts{8, 4096};
inline constexpr Bounds kBodyBytes{1, int64_t{1} << 32};
inline constexpr Bounds kBufferedBodyBytes{1, int64_t{1} << 40};
inline constexpr Bounds kBufferedAnswerBytes{1024, int64_t{1} << 40};
inline constexpr Bounds kUnsentBytes{1024, int64_t{1} << 32};

struct HttpOptions {
  std::string host = "127.0.0.1";  // --host: an address or a name; "0.0.0.0" or "::" for every interface
  int port = 8000;                 // --port; 0 lets the system pick one
  int io_threads = 2;              // --http-threads: event loops, one thread each

  std::vector<std::string> api_keys;         // --api-key; without one every route is open
  std::vector<std::string> allowed_origins;  // --allowed-origins: for browsers; "*" for any; empty: no CORS
  int64_t requests_per_minute = 0;           // --requests-per-minute, of each key; 0: no limit

  int64_t max_connections = 8192;                // --max-connections; the file limit may lower it
  int64_t max_requests_in_flight = 2048;         // --limit-concurrency
  int64_t max_header_bytes = int64_t{64} << 10;  // --h11-max-incomplete-event-size: request line and headers together
  int64_t max_header_count = 256;                // --h11-max-header-count
  int64_t max_body_bytes = int64_t{64} << 20;    // --max-body-bytes
  int64_t max_buffered_body_bytes = int64_t{1} << 30;    // --max-buffered-body-bytes: of all requests not yet answered
  int64_t max_buffered_answer_bytes = int64_t{1} << 30;  // --max-buffered-answer-bytes: of all, said and not yet sent
  int64_t max_unsent_bytes = int64_t{4} << 20;  // --max-unsent-bytes: of a stream; beyond it the client is gone

  std::chrono::milliseconds timeout_header{10'000};      // --timeout-header: from its first byte to its last
  std::chrono::milliseconds timeout_body{60'000};        // --timeout-body: from the header's end
  std::chrono::milliseconds timeout_keep_alive{75'000};  // --timeout-keep-alive: between two requests
  std::chrono::milliseconds timeout_send{30'000};        // --timeout-send: for a reader that takes nearly nothing
  std::chrono::milliseconds sse_keepalive{10'000};       // --sse-keepalive: silence before a comment line in a stream
};

// Errors: kInvalidArgument naming the flag.
void CheckHttpOptions(const HttpOptions& options);

}  // namespace senko::server
