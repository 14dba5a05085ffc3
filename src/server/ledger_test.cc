// Every byte that was taken is given back once, by whoever has it in the end.
#include "server/ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace senko::server {
namespace {

TEST(Ledger, TakesUpToTheLimit) {
  const auto ledger = std::make_shared<Ledger>(100);
  Held a(ledger), b(ledger);
  EXPECT_TRUE(a.Take(60));
  EXPECT_FALSE(b.Take(41));
  EXPECT_EQ(ledger->held(), 60);
  EXPECT_TRUE(b.Take(40));
  EXPECT_FALSE(a.Take(1));
  EXPECT_FALSE(a.Take(INT64_MAX));
  EXPECT_TRUE(a.Take(0));
  a.Force(25);
  EXPECT_EQ(ledger->held(), 125);
  EXPECT_EQ(a.bytes(), 85);
  a.Clear();
  EXPECT_EQ(ledger->held(), 40);
  EXPECT_TRUE(a.Take(60));
}

TEST(Ledger, BytesGoWithTheirOwner) {
  const auto ledger = std::make_shared<Ledger>(100);
  {
    Held a(ledger);
    ASSERT_TRUE(a.Take(30));
    Held b = std::move(a);
    EXPECT_EQ(ledger->held(), 30);
    Held c(ledger);
    ASSERT_TRUE(c.Take(50));
    c = std::move(b);
    EXPECT_EQ(c.bytes(), 30);
    EXPECT_EQ(ledger->held(), 30);
  }
  EXPECT_EQ(ledger->held(), 0);
}

TEST(Ledger, IsExactAcrossThreads) {
  const auto ledger = std::make_shared<Ledger>(10);
  std::vector<std::thread> threads;
  std::atomic<int64_t> most = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20'000; ++i) {
        Held held(ledger);
        if (!held.Take(1 + (i + t) % 10)) continue;
        int64_t seen = most;
        const int64_t now = ledger->held();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger->held(), 0);
  EXPECT_LE(most, 10);
  EXPECT_GE(most, 1);
}

}  // namespace
}  // namespace senko::server
