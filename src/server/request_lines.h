// One line for each request, of what two rooms know: the server when the answer has left, the API when it was made.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "server/access_log.h"

namespace senko::server {

// Thread-safe; does not block. Either half may come first. What the server answered by itself has one half.
class RequestLines {
 public:
  explicit RequestLines(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

  void OnHttp(const AccessRecord& record);
  void OnApi(const api::RequestRecord& record);

 private:
  struct Halves {
    std::optional<AccessRecord> http;
    std::optional<api::RequestRecord> api;
  };
  // Halves that wait for their other one: requests in flight, and never more than this. Past it the oldest is written
  // as it is.
  static constexpr size_t kMostWaiting = 1 << 16;
  void Write(const Halves& halves) const;
  void Pair(uint64_t number, Halves half);

  const std::function<void(std::string_view)> write_;
  std::mutex mutex_;
  std::map<uint64_t, Halves> waiting_;  // by number, so the oldest first
};

}  // namespace senko::server
