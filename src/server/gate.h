// Who may come in: what a request's head alone decides, before any of its body is read.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/exchange.h"
#include "server/access_log.h"
#include "server/api_keys.h"
#include "server/ledger.h"
#include "server/options.h"
#include "server/rate_limit.h"
#include "server/response.h"
#include "server/route_table.h"

namespace senko::server {

// What the program behind the server tells. All may be called from any thread and must not block.
struct HttpHooks {
  std::function<std::string()> not_ready;  // why requests cannot be served yet ("loading the model"); empty: ready
  std::function<std::string()> metrics;    // Prometheus text
  std::string version;
  AccessLog access_log;
};

// Counters since the start unless said otherwise.
struct HttpStats {
  int64_t connections = 0;            // now
  int64_t requests_in_flight = 0;     // now; handed to a handler, until no more than 64 KiB wait to be sent
  int64_t buffered_body_bytes = 0;    // now; of requests that come in or are being answered
  int64_t buffered_answer_bytes = 0;  // now; of answers, said and not yet with the system
  uint64_t accepted = 0;              // connections
  uint64_t requests = 0;              // with a complete head, or refused for a bad one
  uint64_t refused = 0;               // of them, answered with 429 or 503 by the server itself
  uint64_t clients_gone = 0;          // left, or read too slowly, before the answer's end
  uint64_t no_room = 0;               // answers refused, and streams cut, for want of room
};

struct Verdict {
  bool pass = false;  // to `route`'s handler; otherwise what follows is the answer
  int status = 0;
  std::string content_type;
  std::string body;
  Headers headers;
  bool close = false;

  std::shared_ptr<const RouteTable> routes;  // owns `route`
  const api::Route* route = nullptr;
  Headers common;        // for every response to this request
  std::string key;       // the key it was let in with
  std::string key_hash;  // for the log
};

// Thread-safe; shared by all connections.
class Gate : public std::enable_shared_from_this<Gate> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Gate(HttpOptions options, std::vector<api::Route> routes, HttpHooks hooks);

  const HttpOptions& options() const { return options_; }
  const HttpHooks& hooks() const { return hooks_; }
  void SetRoutes(std::vector<api::Route> routes);

  // `over_limit`: the connection is one more than the server keeps; it may ask for /health and nothing else.
  Verdict Judge(const api::HttpRequest& head, bool over_limit, TimePoint now);
  // A refusal in the style of the path's API.
  static Verdict Refuse(std::string_view path, int status, std::string_view message, std::string_view code);

  // 503 with Retry-After: no place left (`draining` decides the words).
  Verdict RefuseForNow(std::string_view path);

  // Of a request that is there with all of its body. `busy` is counted by WaitUntilIdle: held while an answer, a
  // refusal too, is made and sent. `place` is one among the requests in flight, given back when the last copy goes;
  // null when all are taken, or the server drains.
  struct Admission {
    std::shared_ptr<void> busy, place;
  };
  Admission Admit();

  void BeginDrain();
  bool draining() const { return draining_; }
  // Until no answer is being made or sent. False after `timeout`, or when EndWait found answers still running, whoever
  // of the two came first.
  bool WaitUntilIdle(std::chrono::milliseconds timeout);
  void EndWait();

  // What all connections hold of requests' bodies, and of answers.
  const std::shared_ptr<Ledger>& bodies() const { return bodies_; }
  const std::shared_ptr<Ledger>& answers() const { return answers_; }

  std::atomic<int64_t> connections{0};
  std::atomic<uint64_t> accepted{0}, requests{0}, handled{0}, refused{0}, clients_gone{0};
  HttpStats stats() const;

 private:
  bool BuiltIn(const api::HttpRequest& head, Verdict* verdict) const;
  void AddCors(const api::HttpRequest& head, Verdict* verdict) const;
  Verdict Overloaded(std::string_view path, int status, std::string_view message, int64_t retry_after);
  std::shared_ptr<void> TakePlace();
  std::shared_ptr<void> TakeBusy();

  const HttpOptions options_;
  const HttpHooks hooks_;
  const ApiKeys keys_;
  RateLimit rate_limit_;

  mutable std::mutex routes_mutex_;
  std::shared_ptr<const RouteTable> routes_;

  std::atomic<bool> draining_{false};
  std::atomic<int64_t> in_flight_{0};
  const std::shared_ptr<Ledger> bodies_, answers_;

  std::mutex busy_mutex_;
  std::condition_variable idle_;
  int64_t busy_ = 0;
  bool end_wait_ = false, cut_short_ = false;
};

}  // namespace senko::server
