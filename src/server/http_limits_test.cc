// Limits on size, time and number, over real sockets. What depends on time alone is in session_test.cc, to the
// millisecond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "server/test_server.h"

namespace senko::server {
namespace {

using ::testing::HasSubstr;

TEST(HttpLimits, HeaderBytesAndCount) {
  HttpOptions options;
  options.max_header_bytes = 2048;
  options.max_header_count = 20;
  TestServer server(options);
  EXPECT_EQ(server.Ask(Get("/version", "A: " + std::string(1800, 'x') + "\r\n")).status, 200);
  EXPECT_EQ(server.Ask(Get("/version", "A: " + std::string(2048, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(server.Ask(Get("/" + std::string(5000, 'x'))).status, 431);
  std::string many;
  for (int i = 0; i < 19; ++i) many += "A: b\r\n";
  EXPECT_EQ(server.Ask(Get("/version", many)).status, 200);
  EXPECT_EQ(server.Ask(Get("/version", many + "A: b\r\n")).status, 431);
  // A head that never ends is refused when it passes the limit, not when its time is over.
  TestClient client = server.Connect();
  client.Send("GET / HTTP/1.1\r\n" + std::string(3000, 'x'));
  EXPECT_EQ(client.Read().status, 431);
}

TEST(HttpLimits, TenThousandHeaders) {
  TestServer server;
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += "H" + std::to_string(i) + ": x\r\n";
  EXPECT_EQ(server.Ask(Get("/version", many)).status, 431);
}

TEST(HttpLimits, BodyBytes) {
  HttpOptions options;
  options.max_body_bytes = 100'000;
  TestServer server(options);
  EXPECT_EQ(server.Ask(Post("/echo", std::string(100'000, 'x'))).status, 200);
  // Told although the client is still sending when it is refused.
  for (const size_t size : {size_t{100'001}, size_t{3'000'000}}) {
    TestClient client = server.Connect();
    client.Send(Post("/echo", std::string(size, 'x')));
    const TestResponse r = client.Read();
    EXPECT_EQ(r.status, 413);
    EXPECT_EQ(r.headers.at("connection"), "close");
    EXPECT_TRUE(client.WaitClosed(milliseconds(10'000)));
  }
  // By its length alone.
  TestClient announcing = server.Connect();
  announcing.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9223372036854775807\r\n\r\n");
  EXPECT_EQ(announcing.Read().status, 413);
}

TEST(HttpLimits, ChunkedBodyBytes) {
  HttpOptions options;
  options.max_body_bytes = 100'000;
  TestServer server(options);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string chunk = "400\r\n" + std::string(1024, 'x') + "\r\n";
  std::string body;
  for (int i = 0; i < 97; ++i) body += chunk;
  TestResponse r = server.Ask(head + body + "0\r\n\r\n");
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body.size(), 97u * 1024 + 12);
  EXPECT_EQ(server.Ask(head + body + chunk + "0\r\n\r\n").status, 413);
  EXPECT_EQ(server.Ask(head + "7fffffffffffffff\r\nx").status, 413);
  // A chunk's header line is no way around the limit on heads.
  EXPECT_EQ(server.Ask(head + "1;" + std::string(200'000, 'x')).status, 400);
  // Nor are trailers.
  EXPECT_EQ(server.Ask(head + "0\r\nT: " + std::string(200'000, 'x')).status, 400);
}

TEST(HttpLimits, BodiesTogether) {
  HttpOptions options;
  options.max_body_bytes = 60'000;
  options.max_buffered_body_bytes = 100'000;
  TestServer server(options);
  TestClient first = server.Connect(), second = server.Connect();
  first.Send(Post("/hold", std::string(60'000, 'x')));
  const ExchangePtr exchange = server.NextHeld();
  second.Send(Post("/hold", std::string(60'000, 'x')));
  const TestResponse r = second.Read();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.headers.count("retry-after"), 1u);
  exchange->Reply(200, "text/plain", "done");
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(server.Ask(Post("/echo", std::string(60'000, 'x'))).status, 200);
  EXPECT_TRUE(Eventually([&] { return server->stats().buffered_body_bytes == 0; }));
}

// Clients that ask for much and read little: they have no more than the limit together, and keep nobody else out.
TEST(HttpLimits, AnswersTogether) {
  constexpr int kReaders = 40, kBytes = 8 << 20;
  HttpOptions options;
  options.max_buffered_answer_bytes = 50 << 20;
  TestServer server(options);
  std::vector<TestClient> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.push_back(server.Connect(4096));
    readers.back().Send(Post("/hold", "x"));
    const ExchangePtr exchange = server.NextHeld();
    ASSERT_NE(exchange, nullptr);
    exchange->Reply(200, "text/plain", std::string(kBytes, 'x'));
    ASSERT_LE(server->stats().buffered_answer_bytes, (50 << 20) + kReaders * 1024);
  }
  EXPECT_GE(server->stats().buffered_answer_bytes, 5 * kBytes);
  EXPECT_TRUE(Eventually([&] { return server->stats().refused >= kReaders - 6; }));
  EXPECT_GE(server->stats().requests_in_flight, 5);  // those that hold much count as requests
  EXPECT_EQ(server.Ask(Get("/health")).status, 200);
  EXPECT_EQ(server.Ask(Post("/echo", std::string(10'000, 'x'))).status, 200);
  const TestResponse refused = readers.back().Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  readers.clear();
  EXPECT_TRUE(Eventually([&] { return server->stats().buffered_answer_bytes == 0; }));
  EXPECT_TRUE(Eventually([&] { return server->stats().requests_in_flight == 0; }));
  EXPECT_EQ(server.Ask(Post("/echo", std::string(1'000'000, 'x'))).status, 200);
}

TEST(HttpLimits, Timeouts) {
  HttpOptions options;
  options.timeout_header = options.timeout_body = options.timeout_keep_alive = milliseconds(150);
  TestServer server(options);
  TestClient silent = server.Connect(), head = server.Connect(), body = server.Connect(), idle = server.Connect();
  head.Send("GET /version HT");
  body.Send("POST /v1/messages HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab");
  idle.Send(Get("/version"));
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_EQ(head.Read().status, 408);
  const TestResponse late = body.Read();
  EXPECT_EQ(late.status, 408);
  EXPECT_THAT(late.body, HasSubstr(R"({"type":"error")"));
  for (TestClient* client : {&silent, &head, &body, &idle}) {
    EXPECT_TRUE(client->WaitClosed(milliseconds(10'000)));
    EXPECT_EQ(client->input(), "");
  }
}

TEST(HttpLimits, ADripDoesNotMoveTheTimeout) {
  HttpOptions options;
  options.timeout_header = milliseconds(300);
  TestServer server(options);
  TestClient client = server.Connect();
  const auto start = std::chrono::steady_clock::now();
  client.Send("GET / HTTP/1.1\r\nA: ");
  while (!client.ReadUntil("408", milliseconds(20)) && std::chrono::steady_clock::now() - start < kLong) {
    if (!client.Send("x")) break;
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(300));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
  EXPECT_THAT(client.input(), HasSubstr("408"));
}

TEST(HttpLimits, Connections) {
  HttpOptions options;
  options.max_connections = 4;
  TestServer server(options);
  {
    std::vector<TestClient> idle;
    for (int i = 0; i < 4; ++i) idle.push_back(server.Connect());
    idle[0].Send(Get("/version"));
    EXPECT_EQ(idle[0].Read().status, 200);
    ASSERT_TRUE(Eventually([&] { return server->stats().connections == 4; }));
    TestClient more = server.Connect();
    more.Send(Get("/version"));
    const TestResponse r = more.Read();
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.headers.count("retry-after"), 1u);
    EXPECT_EQ(r.headers.at("connection"), "close");
    EXPECT_LT(r.body.size(), 500u);
    TestClient probe = server.Connect();
    probe.Send(Get("/health"));
    EXPECT_EQ(probe.Read().status, 200);
    // Silence is no way to keep a place.
    TestClient silent = server.Connect();
    EXPECT_EQ(silent.Read().status, 503);
    // Beyond the spare ones the door is closed at once.
    std::vector<TestClient> flood;
    for (int i = 0; i < 300; ++i) flood.push_back(server.Connect());
    EXPECT_TRUE(flood.back().WaitClosed());
    idle[1].Send(Get("/version"));
    EXPECT_EQ(idle[1].Read().status, 200);
  }
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  EXPECT_EQ(server.Ask(Get("/version")).status, 200);
}

TEST(HttpLimits, FloodIsRefusedExactly) {
  constexpr int kLimit = 8, kRequests = 200;
  HttpOptions options;
  options.max_requests_in_flight = kLimit;
  TestServer server(options);
  std::vector<TestClient> clients;
  for (int i = 0; i < kRequests; ++i) clients.push_back(server.Connect());
  std::vector<std::thread> senders;
  for (int t = 0; t < 4; ++t) {
    senders.emplace_back([&, t] {
      for (int i = t; i < kRequests; i += 4) clients[i].Send(Post("/hold", "x"));
    });
  }
  for (std::thread& sender : senders) sender.join();
  std::vector<ExchangePtr> held;
  for (int i = 0; i < kLimit; ++i) held.push_back(server.NextHeld());
  // All others have an answer although none of these has.
  ASSERT_TRUE(Eventually([&] { return server->stats().refused == kRequests - kLimit; }));
  EXPECT_EQ(server->stats().requests_in_flight, kLimit);
  for (const ExchangePtr& exchange : held) exchange->Reply(200, "text/plain", "fine");
  std::map<int, int> answers;
  for (TestClient& client : clients) {
    const TestResponse r = client.Read();
    ++answers[r.status];
    if (r.status == 503) {
      EXPECT_EQ(r.headers.count("retry-after"), 1u);
      EXPECT_LT(r.body.size(), 500u);
    }
  }
  EXPECT_EQ(answers, (std::map<int, int>{{200, kLimit}, {503, kRequests - kLimit}}));
  EXPECT_EQ(server->stats().requests_in_flight, 0);
  // A place is free as soon as its answer can be read.
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < kLimit; ++i) clients[i].Send(Post("/hold", "x"));
    for (int i = 0; i < kLimit; ++i) {
      const ExchangePtr exchange = server.NextHeld();
      ASSERT_NE(exchange, nullptr);
      exchange->Reply(200, "text/plain", "fine");
    }
    for (int i = 0; i < kLimit; ++i) ASSERT_EQ(clients[i].Read().status, 200);
  }
}

TEST(HttpLimits, RequestsPerMinuteOfEachKey) {
  HttpOptions options;
  options.api_keys = {"a", "b"};
  options.requests_per_minute = 3;
  TestServer server(options);
  std::map<int, int> answers;
  for (int i = 0; i < 10; ++i) {
    const TestResponse r = server.Ask(Post("/echo", "x", "X-Api-Key: a\r\n"));
    ++answers[r.status];
    if (r.status == 429) {
      EXPECT_GE(std::stoi(r.headers.at("retry-after")), 1);
      EXPECT_LE(std::stoi(r.headers.at("retry-after")), 20);
    }
  }
  EXPECT_EQ(answers, (std::map<int, int>{{200, 3}, {429, 7}}));
  EXPECT_EQ(server.Ask(Post("/echo", "x", "X-Api-Key: b\r\n")).status, 200);
  EXPECT_EQ(server.Ask(Get("/version", "X-Api-Key: a\r\n")).status, 200);  // costs the engine nothing
}

}  // namespace
}  // namespace senko::server
