// A client on a raw socket, which can do everything wrong that a client can.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace senko::server {

using std::chrono::milliseconds;

// Far longer than anything takes; only a hang reaches it.
inline constexpr milliseconds kLong{20'000};

struct TestResponse {
  int status = 0;  // 0: none came
  std::map<std::string, std::string> headers;
  std::string body;
  bool complete = false;
};

class TestClient {
 public:
  explicit TestClient(int port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << errno;
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  ~TestClient() { Close(); }
  TestClient(TestClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)), input_(std::move(other.input_)) {}
  TestClient& operator=(TestClient&&) = delete;

  bool Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void EndSending() { shutdown(fd_, SHUT_WR); }
  // Closes with a reset.
  void Reset() {
    const linger now = {1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }

  // One response; `head_only` for HEAD. A body without a length ends with the connection.
  TestResponse Read(bool head_only = false, milliseconds timeout = kLong) {
    TestResponse r;
    if (!ReadUntil("\r\n\r\n", timeout)) return r;
    const size_t end = input_.find("\r\n\r\n");
    const std::string head = input_.substr(0, end + 2);
    input_.erase(0, end + 4);
    r.status = std::atoi(head.substr(9, 3).c_str());
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t line_end = head.find("\r\n", at), colon = head.find(':', at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      std::string& value = r.headers[name];  // of several lines with one name: joined
      if (!value.empty()) value += ", ";
      value += head.substr(colon + 2, line_end - colon - 2);
      at = line_end + 2;
    }
    if (head_only || r.status == 204 || r.status == 100) {
      r.complete = true;
    } else if (r.headers.count("content-length") > 0) {
      const size_t length = std::stoull(r.headers["content-length"]);
      while (input_.size() < length && ReadMore(timeout)) {
      }
      r.complete = input_.size() >= length;
      r.body = input_.substr(0, length);
      input_.erase(0, r.body.size());
    } else if (r.headers.count("transfer-encoding") > 0) {
      r.complete = ReadChunks(timeout, &r.body);
    } else {
      while (ReadMore(timeout)) {
      }
      r.complete = closed_;
      r.body = std::exchange(input_, {});
    }
    return r;
  }
  bool ReadUntil(std::string_view text, milliseconds timeout = kLong) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (input_.find(text) == std::string::npos) {
      const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !ReadMore(left)) return false;
    }
    return true;
  }
  // What the server closed, or reset.
  bool WaitClosed(milliseconds timeout = kLong) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!closed_ && std::chrono::steady_clock::now() < until) ReadMore(milliseconds(50));
    return closed_;
  }
  std::string& input() { return input_; }
  int fd() const { return fd_; }

 private:
  // False at the connection's end and when nothing comes.
  bool ReadMore(milliseconds timeout) {
    pollfd wait = {fd_, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) return false;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) {
      closed_ = true;
      return false;
    }
    input_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  bool ReadChunks(milliseconds timeout, std::string* body) {
    for (;;) {
      if (!ReadUntil("\r\n", timeout)) return false;
      const size_t size = std::stoull(input_, nullptr, 16);
      const size_t start = input_.find("\r\n") + 2;
      while (input_.size() < start + size + 2 && ReadMore(timeout)) {
      }
      if (input_.size() < start + size + 2 || input_.substr(start + size, 2) != "\r\n") return false;
      body->append(input_, start, size);
      input_.erase(0, start + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_;
  std::string input_;
  bool closed_ = false;
};

inline std::string Get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n";
}
inline std::string Post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

}  // namespace senko::server
