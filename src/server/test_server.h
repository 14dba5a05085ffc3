// A server whose handlers hand their exchanges to the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/http_server.h"
#include "server/test_client.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SENKO_SANITIZED 1
#else
#define SENKO_SANITIZED 0
#endif

namespace senko::server {

// Waits until `condition` holds; false after kLong.
template <typename Condition>
bool Eventually(const Condition& condition, milliseconds limit = kLong) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

using ExchangePtr = std::shared_ptr<api::Exchange>;

class TestServer {
 public:
  explicit TestServer(HttpOptions options = {}, HttpHooks hooks = {}) {
    options.port = 0;
    hooks.version = "1.2.3";
    if (!hooks.access_log) {
      hooks.access_log = [this](const AccessRecord& record) {
        const std::lock_guard lock(mutex_);
        records_.push_back(record);
      };
    }
    server_ = std::make_unique<HttpServer>(std::move(options), Routes(), std::move(hooks));
    server_->Start();
  }
  ~TestServer() {
    {
      const std::lock_guard lock(mutex_);
      held_.clear();
    }
    server_.reset();
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  int port() const { return server_->port(); }
  TestClient Connect(int receive_buffer = 0) const { return TestClient(port(), receive_buffer); }
  TestResponse Ask(const std::string& request) const {
    TestClient client = Connect();
    client.Send(request);
    return client.Read(request.starts_with("HEAD"));
  }

  // The next exchange of /hold; null after kLong.
  ExchangePtr NextHeld() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLong, [this] { return !held_.empty(); })) return nullptr;
    ExchangePtr exchange = std::move(held_.front());
    held_.pop_front();
    return exchange;
  }
  std::vector<AccessRecord> Records() {
    const std::lock_guard lock(mutex_);
    return records_;
  }
  void Destroy() { server_.reset(); }

  std::vector<api::Route> Routes() {
    const auto echo = [](api::HttpRequest request, const ExchangePtr& exchange) {
      exchange->Reply(200, "text/plain", request.method + " " + request.path + " " + request.query + " " + request.body,
                      {{"X-Key", request.api_key}});
    };
    const auto hold = [this](const api::HttpRequest&, ExchangePtr exchange) {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      changed_.notify_all();
    };
    return {{"POST", "/echo", echo},
            {"GET", "/echo", echo},
            {"GET", "/models/", echo},
            {"POST", "/hold", hold},
            {"POST", "/v1/messages", hold},
            {"POST", "/throw", [](const api::HttpRequest&, const ExchangePtr&) { throw std::runtime_error("secret"); }},
            {"POST", "/drop", [](const api::HttpRequest&, const ExchangePtr&) {}}};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ExchangePtr> held_;
  std::vector<AccessRecord> records_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace senko::server
