// Sockets: event loops of one thread each, every connection on one of them, never a thread per connection.
#pragma once

#include <memory>
#include <string>

#include "server/gate.h"

namespace senko::server {

class TcpServer {
 public:
  // Listens on options().host and port. Errors: kInvalidArgument or kIo naming --host or --port.
  explicit TcpServer(std::shared_ptr<Gate> gate);
  ~TcpServer();
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

  int port() const;
  // Closes everything now and joins the threads; running answers are told that their client has gone. Once; not from
  // an I/O thread.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace senko::server
