// Without memory for a moment, at any of the places where some is asked for: it costs what was being done, no more.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <utility>

#include "server/test_server.h"

namespace {

thread_local bool spared = false;                         // this thread's memory never fails
thread_local int64_t own_countdown = 0;                   // of this thread alone
thread_local std::function<void()>* meanwhile = nullptr;  // runs in own_countdown's place, and nothing fails
std::atomic<int64_t> countdown = 0;  // of all threads that are not spared: the allocation that fails, from 1; 0: none

bool Fails() {
  if (own_countdown > 0 && --own_countdown == 0) {
    if (meanwhile == nullptr) return true;
    (*std::exchange(meanwhile, nullptr))();
  }
  if (spared || countdown <= 0) return false;
  return countdown.fetch_sub(1) == 1;
}

}  // namespace

// Not inlined: the compiler would take malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  void* memory = Fails() ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Fails() ? nullptr : std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace senko::server {
namespace {

constexpr int kMostPlaces = 400;

// However the I/O threads fail while a connection comes, asks and goes, the next one is served and none is left behind.
TEST(HttpMemory, AConnectionThatFailsCostsItselfAlone) {
  spared = true;
  HttpOptions options;
  options.io_threads = 1;
  options.timeout_header = milliseconds(300);
  TestServer server(options);
  bool all = false;
  int failed = 0;
  for (int place = 1; place <= kMostPlaces && !all; ++place) {
    countdown = place;
    {
      TestClient client = server.Connect();
      client.Send(Post("/echo", std::string(1000, 'x'), "Connection: close\r\n"));
      failed += client.Read(false, milliseconds(2000)).status == 200 ? 0 : 1;
    }
    EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; })) << place;
    all = countdown.exchange(0) > 0;
    TestClient next = server.Connect();
    next.Send(Get("/health"));
    ASSERT_EQ(next.Read(false, milliseconds(5000)).status, 200) << "after place " << place;
    next.Close();
    ASSERT_TRUE(Eventually([&] { return server->stats().connections == 0; })) << place;
    ASSERT_EQ(server->stats().requests_in_flight, 0) << place;
    ASSERT_EQ(server->stats().buffered_body_bytes, 0) << place;
  }
  EXPECT_TRUE(all) << "more places than are looked at";
  EXPECT_GE(failed, 10);
}

// A handler's thread that fails in the middle of saying something: what it says next is heard, and what was said is
// whole.
TEST(HttpMemory, AnEventThatFailsLeavesTheStreamAwake) {
  spared = true;
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/hold", "x"));
  const ExchangePtr exchange = server.NextHeld();
  std::string expected;
  exchange->BeginEvents();
  ASSERT_TRUE(client.ReadUntil("\r\n\r\n"));
  int failed = 0;
  for (int place = 1; place <= 8; ++place) {
    const std::string event(1000 * place, 'x');
    std::string text = event;
    own_countdown = place;
    try {
      exchange->Event(std::move(text), "name");
      expected += "event: name\ndata: " + event + "\n\n";
    } catch (const std::bad_alloc&) {
      ++failed;
    }
    own_countdown = 0;
    exchange->Event("next");
    expected += "data: next\n\n";
    client.input().clear();
    ASSERT_TRUE(client.ReadUntil("data: next\n\n", milliseconds(5000))) << place;
  }
  EXPECT_GE(failed, 1);
  exchange->EndEvents();
  EXPECT_TRUE(client.ReadUntil("0\r\n\r\n"));
}

// A whole answer that fails leaves its exchange open for another, and the last owner's end is heard even so.
TEST(HttpMemory, AReplyThatFailsIsNotTheEnd) {
  spared = true;
  TestServer server;
  int failed = 0;
  for (int place = 1; place <= 8; ++place) {
    for (const bool stream : {false, true}) {
      TestClient client = server.Connect(), abandoned = server.Connect();
      client.Send(Post("/hold", "x"));
      const ExchangePtr exchange = server.NextHeld();
      abandoned.Send(Post("/hold", "x"));
      ExchangePtr dropped = server.NextHeld();
      api::HttpRequest unused;
      std::vector<std::pair<std::string, std::string>> headers;
      std::string body = "body";
      own_countdown = place;
      try {
        if (stream) {
          exchange->BeginEvents();
        } else {
          exchange->Reply(200, "text/plain; with a name that needs memory", std::move(body), std::move(headers));
        }
      } catch (const std::bad_alloc&) {
        ++failed;
      }
      own_countdown = 0;
      if (stream) {
        exchange->BeginEvents();
        exchange->EndEvents();
      } else {
        exchange->Reply(500, "text/plain", "again");
      }
      EXPECT_TRUE(client.Read(false, milliseconds(5000)).complete) << place;
      own_countdown = place;
      dropped.reset();
      own_countdown = 0;
      const int status = abandoned.Read(false, milliseconds(5000)).status;
      EXPECT_TRUE(status == 500 || abandoned.WaitClosed()) << place << " " << status;
    }
  }
  EXPECT_GE(failed, 2);
  EXPECT_EQ(server->stats().requests_in_flight, 0);
}

// The drain comes while a request is being let in, at whichever of the places where that takes memory: whoever finds
// the server idle then can be sure that no request gets in any more.
TEST(HttpMemory, NobodyGetsInBehindAnIdleDrain) {
  spared = true;
  int let_in = 0, refused = 0;
  for (int place = 1; place <= 4; ++place) {
    const auto gate = std::make_shared<Gate>(HttpOptions(), std::vector<api::Route>(), HttpHooks());
    bool idle = false;
    std::function<void()> drain = [&] {
      gate->BeginDrain();
      idle = gate->WaitUntilIdle(milliseconds(0));
    };
    meanwhile = &drain;
    own_countdown = place;
    Gate::Admission admission = gate->Admit();
    const bool came = std::exchange(meanwhile, nullptr) == nullptr;
    own_countdown = 0;
    if (!came) break;
    EXPECT_FALSE(idle && admission.place != nullptr) << place;
    (admission.place ? let_in : refused) += 1;
    admission = {};
    EXPECT_TRUE(gate->WaitUntilIdle(milliseconds(0)));
  }
  EXPECT_GE(let_in, 1);
  EXPECT_GE(refused, 1);
}

}  // namespace
}  // namespace senko::server
