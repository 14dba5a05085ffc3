#include "server/options.h"

#include <string_view>

#include "base/error.h"

namespace senko::server {
namespace {

void Within(std::string_view flag, int64_t value, Bounds bounds) {
  const auto [low, high] = bounds;
  if (low <= value && value <= high) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(flag) + " is " + std::to_string(value) + "; it must be from " +
                                               std::to_string(low) + " to " + std::to_string(high));
}

void Within(std::string_view flag, std::chrono::milliseconds value) {
  constexpr int64_t kDay = 24 * 3600 * 1000;
  Within(std::string(flag) + " in milliseconds", value.count(), {1, kDay});
}

}  // namespace

void CheckHttpOptions(const HttpOptions& o) {
  if (o.host.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--host is empty; 0.0.0.0 or :: listens on every interface");
  }
  for (const std::string& origin : o.allowed_origins) {
    const size_t host = origin.find("://");
    if (origin != "*" && origin != "null" &&
        (host == std::string::npos || host == 0 || host + 3 == origin.size() ||
         origin.find('/', host + 3) != std::string::npos)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--allowed-origins has '" + origin +
                      "'; an origin is like https://example.org, without a path, or * for any");
    }
  }
  Within("--port", o.port, kPorts);
  Within("--http-threads", o.io_threads, kHttpThreads);
  Within("--requests-per-minute", o.requests_per_minute, kRates);
  Within("--max-connections", o.max_connections, kConnections);
  Within("--limit-concurrency", o.max_requests_in_flight, kConnections);
  Within("--h11-max-incomplete-event-size", o.max_header_bytes, kHeaderBytes);
  Within("--h11-max-header-count", o.max_header_count, kHeaderCounts);
  Within("--max-body-bytes", o.max_body_bytes, kBodyBytes);
  Within("--max-buffered-body-bytes", o.max_buffered_body_bytes, {o.max_body_bytes, kBufferedBodyBytes.high});
  Within("--max-unsent-bytes", o.max_unsent_bytes, kUnsentBytes);
  Within("--max-buffered-answer-bytes", o.max_buffered_answer_bytes, {o.max_unsent_bytes, kBufferedAnswerBytes.high});
  Within("--timeout-header", o.timeout_header);
  Within("--timeout-body", o.timeout_body);
  Within("--timeout-keep-alive", o.timeout_keep_alive);
  Within("--timeout-send", o.timeout_send);
  Within("--sse-keepalive", o.sse_keepalive);
  for (const std::string& key : o.api_keys) {
    for (const char c : key) {
      if (c <= ' ' || c > '~') {
        throw Error(ErrorCode::kInvalidArgument,
                    "--api-key has a key with a space or another character that a header cannot carry");
      }
    }
    if (key.empty()) throw Error(ErrorCode::kInvalidArgument, "--api-key has an empty key");
  }
}

}  // namespace senko::server
