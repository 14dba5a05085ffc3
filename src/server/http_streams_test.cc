// Event streams over real sockets: what a client sees and when, clients that leave or read slowly, the server's end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "api/test_workers.h"
#include "api/workers.h"
#include "server/test_server.h"

namespace senko::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HttpStreams, EventsLeaveAtOnce) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  exchange->BeginEvents();
  ASSERT_TRUE(client.ReadUntil("\r\n\r\n")) << "the head waits for an event";
  EXPECT_THAT(client.input(), HasSubstr("Content-Type: text/event-stream"));
  exchange->Event("first");
  ASSERT_TRUE(client.ReadUntil("data: first\n\n"));
  exchange->Event("{}", "ping");
  ASSERT_TRUE(client.ReadUntil("event: ping\ndata: {}\n\n"));
  exchange->EndEvents();
  exchange->Event("after the end");
  const TestResponse r = client.Read();
  EXPECT_TRUE(r.complete);
  EXPECT_EQ(r.body, "data: first\n\nevent: ping\ndata: {}\n\n");
  client.Send(Post("/echo", "next"));  // the connection goes on
  EXPECT_EQ(client.Read().body, "POST /echo  next");
}

TEST(HttpStreams, BurstsFromAnyThreadKeepTheirOrder) {
  constexpr int kStreams = 8, kEvents = 2000;
  TestServer server;
  std::vector<TestClient> clients;
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(server.Connect());
    clients.back().Send(Post("/hold", "x"));
    threads.emplace_back([exchange = server.NextHeld()] {
      exchange->BeginEvents();
      for (int k = 0; k < kEvents; ++k) exchange->Event(std::to_string(k));
      exchange->EndEvents();
    });
  }
  std::string expected;
  for (int k = 0; k < kEvents; ++k) expected += "data: " + std::to_string(k) + "\n\n";
  for (TestClient& client : clients) EXPECT_EQ(client.Read().body, expected);
  for (std::thread& thread : threads) thread.join();
}

// A worker's wake-up of an I/O thread may wait for its next job. Other threads' events to the same I/O thread do not
// wait for that, however long the job is; and they take the first one's event along.
TEST(HttpStreams, ALongJobHoldsUpNobody) {
  HttpOptions options;
  options.io_threads = 1;
  TestServer server(options);
  TestClient first = server.Connect(), second = server.Connect();
  first.Send(Post("/hold", "x"));
  const ExchangePtr of_worker = server.NextHeld();
  second.Send(Post("/hold", "x"));
  const ExchangePtr of_other = server.NextHeld();
  for (const ExchangePtr& exchange : {of_worker, of_other}) exchange->BeginEvents();
  for (TestClient* client : {&first, &second}) ASSERT_TRUE(client->ReadUntil("\r\n\r\n"));

  api::Workers worker(1);
  const api::LongJobBehind busy(worker, [&] { of_worker->Event("short"); });
  of_other->Event("other");
  EXPECT_TRUE(second.ReadUntil("data: other\n\n", milliseconds(5000)));
  EXPECT_TRUE(first.ReadUntil("data: short\n\n", milliseconds(5000)));
}

TEST(HttpStreams, CommentsInSilenceAndOnlyInStreams) {
  HttpOptions options;
  options.sse_keepalive = milliseconds(50);
  TestServer server(options);
  TestClient stream = server.Connect(), whole = server.Connect();
  stream.Send(Post("/hold", "x"));
  const ExchangePtr events = server.NextHeld();
  whole.Send(Post("/hold", "x"));
  const ExchangePtr reply = server.NextHeld();
  events->BeginEvents();
  ASSERT_TRUE(stream.ReadUntil(": keepalive\n\n"));
  stream.input().erase(0, stream.input().find(": keepalive"));
  ASSERT_TRUE(stream.ReadUntil("\r\nd\r\n: keepalive\n\n"));
  events->Event("x");
  events->EndEvents();
  ASSERT_TRUE(stream.ReadUntil("data: x\n\n\r\n0\r\n\r\n"));
  EXPECT_FALSE(whole.ReadUntil("H", milliseconds(1)));
  reply->Reply(200, "text/plain", "body");
  EXPECT_EQ(whole.Read().body, "body");
}

// How a client leaves, and what it had got by then.
enum class Leave { kClose, kReset, kEndSending };
class Leaving : public ::testing::TestWithParam<std::tuple<Leave, bool>> {};

TEST_P(Leaving, IsNoticedAtOnceWithNothingBeingSent) {
  const auto [how, streaming] = GetParam();
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  std::atomic<int> calls = 0;
  exchange->OnGone([&] { calls += 100; });  // replaced
  exchange->OnGone([&] { ++calls; });
  if (streaming) {
    exchange->BeginEvents();
    exchange->Event("x");
    ASSERT_TRUE(client.ReadUntil("data: x\n\n"));
  }
  EXPECT_FALSE(exchange->gone());
  if (how == Leave::kClose) client.Close();
  if (how == Leave::kReset) client.Reset();
  if (how == Leave::kEndSending) client.EndSending();
  ASSERT_TRUE(Eventually([&] { return calls > 0; }, milliseconds(5000)));
  EXPECT_TRUE(exchange->gone());
  exchange->Event("y");
  exchange->EndEvents();
  exchange->Reply(200, "text/plain", "z");
  bool late = false;
  exchange->OnGone([&] { late = true; });
  EXPECT_TRUE(late);
  ASSERT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(server->stats().requests_in_flight, 0);
  EXPECT_EQ(server->stats().clients_gone, 1u);
  ASSERT_TRUE(Eventually([&] { return server.Records().size() == 1; }));
  EXPECT_EQ(server.Records()[0].status, streaming ? 200 : 499);
  EXPECT_TRUE(server.Records()[0].gone);
}

INSTANTIATE_TEST_SUITE_P(HttpStreams, Leaving,
                         ::testing::Combine(::testing::Values(Leave::kClose, Leave::kReset, Leave::kEndSending),
                                            ::testing::Bool()));

TEST(HttpStreams, GoneIsNeverSaidAfterTheEnd) {
  TestServer server;
  bool called = false;
  {
    TestClient client = server.Connect();
    client.Send(Post("/hold", "x"));
    const ExchangePtr exchange = server.NextHeld();
    exchange->OnGone([&] { called = true; });
    exchange->Reply(200, "text/plain", "x");
    EXPECT_EQ(client.Read().status, 200);
    client.Reset();
    EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
    exchange->OnGone([&] { called = true; });
    EXPECT_FALSE(exchange->gone());
  }
  EXPECT_FALSE(called);
}

TEST(HttpStreams, AHalfClosedClientStillGetsWhatIsReady) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/echo", std::string(1'000'000, 'x')));
  client.EndSending();
  const TestResponse r = client.Read();
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body.size(), 1'000'000u + 12);
}

TEST(HttpStreams, ASlowReaderIsGoneAtTheLimit) {
  HttpOptions options;
  options.max_unsent_bytes = 100'000;
  TestServer server(options);
  TestClient client = server.Connect(4096);
  client.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  std::atomic<int> calls = 0;
  exchange->OnGone([&] { ++calls; });
  exchange->BeginEvents();
  // The system takes some megabytes before it lets anybody wait.
  uint64_t sent = 0;
  const std::string event(10'000, 'x');
  while (!exchange->gone() && sent < (uint64_t{1} << 30)) {
    exchange->Event(event);
    sent += event.size();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_LT(sent, uint64_t{1} << 30);
  EXPECT_TRUE(Eventually([&] { return calls == 1; }));
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  EXPECT_TRUE(client.WaitClosed());
}

// Two events at once, each above the limit, and small ones at once behind them: a client that reads has them all.
TEST(HttpStreams, EventsAboveTheLimitReachAFastReader) {
  HttpOptions options;
  options.max_unsent_bytes = 100'000;
  TestServer server(options);
  TestClient client = server.Connect();
  client.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  exchange->BeginEvents();
  const std::string large(1'000'000, 'x');
  exchange->Event(large);
  exchange->Event(large);
  for (int i = 0; i < 100; ++i) exchange->Event("y");
  exchange->EndEvents();
  const TestResponse r = client.Read();
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body.size(), 2 * (large.size() + 8) + 100 * 9);
}

TEST(HttpStreams, AReaderThatStopsIsGoneInTime) {
  HttpOptions options;
  options.timeout_send = milliseconds(200);
  options.max_unsent_bytes = int64_t{1} << 30;
  TestServer server(options);
  TestClient stream = server.Connect(4096), whole = server.Connect(4096);
  stream.Send(Post("/hold", "x"));
  const ExchangePtr events = server.NextHeld();
  whole.Send(Post("/hold", "x"));
  const ExchangePtr reply = server.NextHeld();
  events->BeginEvents();
  events->Event(std::string(32 << 20, 'x'));
  reply->Reply(200, "text/plain", std::string(32 << 20, 'x'));
  EXPECT_TRUE(Eventually([&] { return events->gone(); }));
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
}

TEST(HttpStreams, AnAbandonedStreamLooksBroken) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/hold", "x"));
  {
    const ExchangePtr exchange = server.NextHeld();
    exchange->BeginEvents();
    exchange->Event("x");
    ASSERT_TRUE(client.ReadUntil("data: x"));
  }
  EXPECT_TRUE(client.WaitClosed());
  EXPECT_THAT(client.input(), Not(HasSubstr("\r\n0\r\n")));
}

TEST(HttpStreams, DrainLetsRunningOnesFinish) {
  TestServer server;
  TestClient stream = server.Connect(), idle = server.Connect(), uploading = server.Connect();
  stream.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  exchange->BeginEvents();
  idle.Send(Get("/version"));
  EXPECT_EQ(idle.Read().status, 200);
  uploading.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab");
  ASSERT_TRUE(Eventually([&] { return server->stats().buffered_body_bytes == 1 + 2; }));

  std::atomic<bool> drained = false;
  std::thread drain([&] { drained = server->Drain(kLong); });
  ASSERT_TRUE(Eventually([&] { return server.Ask(Get("/ready")).status == 503; }));
  EXPECT_THAT(server.Ask(Get("/ready")).body, HasSubstr("draining"));
  EXPECT_EQ(server.Ask(Get("/health")).status, 200);
  uploading.Send("cde");
  idle.Send(Post("/echo", "x"));
  for (TestClient* client : {&idle, &uploading}) {
    const TestResponse r = client->Read();
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.headers.count("retry-after"), 1u);
    EXPECT_EQ(r.headers.at("connection"), "close");
    EXPECT_TRUE(client->WaitClosed());
  }
  EXPECT_FALSE(drained);
  exchange->Event("still");
  ASSERT_TRUE(stream.ReadUntil("data: still\n\n"));
  exchange->EndEvents();
  drain.join();
  EXPECT_TRUE(drained);
  EXPECT_TRUE(stream.Read().complete);
  EXPECT_TRUE(stream.WaitClosed());
}

TEST(HttpStreams, DrainGivesUpInTimeAndStopEndsIt) {
  TestServer server;
  TestClient stream = server.Connect();
  stream.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  std::atomic<int> calls = 0;
  exchange->OnGone([&] { ++calls; });
  exchange->BeginEvents();
  ASSERT_TRUE(stream.ReadUntil("\r\n\r\n"));
  EXPECT_FALSE(server->Drain(milliseconds(50)));
  EXPECT_EQ(calls, 0);
  std::atomic<bool> drained = true;
  std::thread drain([&] { drained = server->Drain(kLong); });
  std::this_thread::sleep_for(milliseconds(20));
  server->Stop();
  drain.join();
  EXPECT_FALSE(drained);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(exchange->gone());
  EXPECT_TRUE(stream.WaitClosed());
}

TEST(HttpStreams, AnExchangeOutlivesItsServer) {
  ExchangePtr exchange;
  std::atomic<int> calls = 0;
  {
    TestServer server;
    TestClient client = server.Connect();
    client.Send(Post("/hold", "x"));
    exchange = server.NextHeld();
    exchange->OnGone([&] { ++calls; });
    exchange->BeginEvents();
    server.Destroy();
  }
  exchange->Event("x");
  exchange->EndEvents();
  EXPECT_TRUE(exchange->gone());
  EXPECT_EQ(calls, 1);
}

// Handlers answer from other threads while clients leave at any moment and the server stops.
TEST(HttpStreams, LeavingAtRandomLeaksNothing) {
  constexpr int kRounds = 300;
  TestServer server;
  std::atomic<bool> end = false;
  std::atomic<int> gone = 0, finished = 0;
  std::vector<std::thread> workers;
  for (int t = 0; t < 3; ++t) {
    workers.emplace_back([&] {
      while (!end) {
        const ExchangePtr exchange = server.NextHeld();
        if (!exchange) return;
        exchange->OnGone([&] { ++gone; });
        exchange->BeginEvents();
        for (int i = 0; i < 20; ++i) exchange->Event(std::string(100, 'e'));
        exchange->EndEvents();
        ++finished;
      }
    });
  }
  for (int i = 0; i < kRounds; ++i) {
    TestClient client = server.Connect();
    client.Send(Post("/hold", "x"));
    if (i % 3 == 0) client.ReadUntil("data", milliseconds(i % 7));
    if (i % 3 == 1) client.Reset();
    if (i % 3 == 2) {
      EXPECT_TRUE(client.Read().complete);
    }
  }
  ASSERT_TRUE(Eventually([&] { return finished == kRounds; }));
  end = true;
  for (size_t i = 0; i < workers.size(); ++i) {
    TestClient client = server.Connect();
    client.Send(Post("/hold", "x"));
    client.Read();
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  EXPECT_EQ(server->stats().requests_in_flight, 0);
  EXPECT_EQ(server->stats().buffered_body_bytes, 0);
}

}  // namespace
}  // namespace senko::server
