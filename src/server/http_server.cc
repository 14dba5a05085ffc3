#include "server/http_server.h"

#include <mutex>
#include <utility>

#include "base/check.h"
#include "server/tcp_server.h"

namespace senko::server {

struct HttpServer::Impl {
  std::shared_ptr<Gate> gate;
  std::mutex stop_mutex;
  std::unique_ptr<TcpServer> tcp;
  int port = 0;
};

HttpServer::HttpServer(HttpOptions options, std::vector<api::Route> routes, HttpHooks hooks)
    : impl_(std::make_unique<Impl>()) {
  CheckHttpOptions(options);
  impl_->gate = std::make_shared<Gate>(std::move(options), std::move(routes), std::move(hooks));
}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Start() {
  SENKO_CHECK(impl_->port == 0);
  impl_->tcp = std::make_unique<TcpServer>(impl_->gate);
  impl_->port = impl_->tcp->port();
}

int HttpServer::port() const { return impl_->port; }
void HttpServer::SetRoutes(std::vector<api::Route> routes) { impl_->gate->SetRoutes(std::move(routes)); }
HttpStats HttpServer::stats() const { return impl_->gate->stats(); }

bool HttpServer::Drain(std::chrono::milliseconds timeout) {
  impl_->gate->BeginDrain();
  return impl_->gate->WaitUntilIdle(timeout);
}

void HttpServer::Stop() {
  impl_->gate->BeginDrain();
  impl_->gate->EndWait();
  const std::lock_guard lock(impl_->stop_mutex);
  if (impl_->tcp) impl_->tcp->Stop();
}

}  // namespace senko::server
