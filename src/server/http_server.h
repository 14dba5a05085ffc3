// The HTTP server: /health, /ready, /version, /metrics and the routes it is given.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "api/exchange.h"
#include "server/gate.h"
#include "server/options.h"

namespace senko::server {

// Thread-safe, but for Start; not to be stopped from a handler or a callback.
class HttpServer {
 public:
  // Errors: kInvalidArgument naming the flag.
  HttpServer(HttpOptions options, std::vector<api::Route> routes, HttpHooks hooks = {});
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens; /health answers from here on. Errors: kIo or kInvalidArgument naming --host or --port.
  void Start();
  int port() const;
  // Replaces the routes for requests to come. With HttpHooks::not_ready the server can listen while the model loads
  // and get its routes when it has.
  void SetRoutes(std::vector<api::Route> routes);

  // From here on new requests are refused (503, Retry-After, Connection: close) and a connection closes with its last
  // answer. Waits until every running answer is sent; false if `timeout` came first, or Stop.
  bool Drain(std::chrono::milliseconds timeout);
  // Closes everything now: what still runs is told that its client has gone. May be called while another thread
  // drains.
  void Stop();

  HttpStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace senko::server
