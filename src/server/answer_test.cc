// An answer between its handler and its connection, without a connection.
#include "server/answer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace senko::server {
namespace {

struct CountingBell : Bell {
  void Ring() noexcept override { ++rings; }
  std::atomic<int> rings = 0;
};

struct Fixture {
  std::shared_ptr<CountingBell> bell = std::make_shared<CountingBell>();
  std::shared_ptr<int> ticket = std::make_shared<int>();
  std::shared_ptr<Answer> answer = std::make_shared<Answer>("/x", bell, 1024, ticket);
  Answer::Batch batch;
};

TEST(Answer, RingsOnceForWhatLeavesTogether) {
  Fixture f;
  f.answer->BeginEvents();
  for (int i = 0; i < 5; ++i) f.answer->Event("x", "");
  EXPECT_EQ(f.bell->rings, 1);
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  EXPECT_TRUE(f.batch.begins);
  EXPECT_EQ(f.batch.data.size(), 5u * 9);
  EXPECT_FALSE(f.batch.ends);
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kNothing);
  f.answer->Event("y", "");
  EXPECT_EQ(f.bell->rings, 2);
  f.answer->EndEvents();
  EXPECT_EQ(f.bell->rings, 2);
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  EXPECT_FALSE(f.batch.begins);
  EXPECT_EQ(f.batch.data, "data: y\n\n");
  EXPECT_TRUE(f.batch.ends);
}

TEST(Answer, TicketGoesWithTheEndBeforeTheBellRings) {
  struct Looking : Bell {
    void Ring() noexcept override { seen = ticket.use_count(); }
    std::shared_ptr<int> ticket = std::make_shared<int>();
    std::atomic<int64_t> seen = 0;
  };
  auto bell = std::make_shared<Looking>();
  Answer answer("/x", bell, 1000, bell->ticket);
  EXPECT_EQ(bell->ticket.use_count(), 2);
  answer.Reply(200, "", "x", {});
  EXPECT_EQ(bell->seen, 1);
}

TEST(Answer, TheLimitCountsWhatIsBeingSent) {
  Fixture f;
  int gone = 0;
  f.answer->BeginEvents();
  f.answer->OnGone([&] { ++gone; });
  // Events of 8 bytes on the wire against a limit of 1024.
  for (int i = 0; i < 100; ++i) f.answer->Event("", "");
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  for (int i = 0; i < 28; ++i) f.answer->Event("", "");
  EXPECT_FALSE(f.answer->gone());
  f.answer->Event("", "");  // 1024 bytes waited before it: not more than the limit
  EXPECT_FALSE(f.answer->gone());
  f.answer->Event("", "");
  EXPECT_TRUE(f.answer->gone());
  EXPECT_EQ(f.ticket.use_count(), 1);
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kOverflow);
  EXPECT_EQ(gone, 0);
  f.answer->MarkGone();
  f.answer->MarkGone();
  EXPECT_EQ(gone, 1);
}

// A client cannot read what has not been sent: a burst of events that are larger than the limit is no fault of its own.
TEST(Answer, ABurstOfLargeEventsIsNoOverflow) {
  Fixture f;
  f.answer->BeginEvents();
  for (int choice = 0; choice < 128; ++choice) f.answer->Event(std::string(5000, 'x'), "");
  f.answer->Event("y", "");
  EXPECT_FALSE(f.answer->gone());
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  EXPECT_EQ(f.batch.data.size(), 128u * 5008 + 9);
  // What is being sent counts, until the next is taken.
  f.answer->Event("z", "");
  EXPECT_TRUE(f.answer->gone());
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kOverflow);

  Fixture g;
  g.answer->BeginEvents();
  for (int i = 0; i < 1000; ++i) {
    g.answer->Event(std::string(5000, 'x'), "");
    ASSERT_EQ(g.answer->Take(&g.batch), Answer::Taken::kBatch);
    ASSERT_EQ(g.answer->Take(&g.batch), Answer::Taken::kNothing);  // it has been sent
  }
  EXPECT_FALSE(g.answer->gone());
}

TEST(Answer, OnlyOneAnswerIsTaken) {
  Fixture f;
  f.answer->Event("early", "");
  f.answer->EndEvents();
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kNothing);
  f.answer->Reply(200, "a", "first", {});
  f.answer->Reply(500, "b", "second", {});
  f.answer->BeginEvents();
  f.answer->Event("x", "");
  f.answer->Abandon();
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  EXPECT_EQ(f.batch.data, "first");
  EXPECT_EQ(f.batch.status, 200);
  EXPECT_TRUE(f.batch.ends);
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kNothing);
}

TEST(Answer, GoneAndEndedExcludeEachOther) {
  for (int round = 0; round < 200; ++round) {
    Fixture f;
    std::atomic<int> gone = 0;
    f.answer->OnGone([&] { ++gone; });
    f.answer->BeginEvents();
    std::thread leaving([&] { f.answer->MarkGone(); });
    f.answer->EndEvents();
    leaving.join();
    EXPECT_EQ(gone, f.answer->gone() ? 1 : 0);
    EXPECT_EQ(f.ticket.use_count(), 1);
  }
}

TEST(Answer, ABrokenCircleOfOwnersIsNoLeak) {
  std::weak_ptr<Answer> watched;
  {
    Fixture f;
    watched = f.answer;
    auto exchange = MakeExchange(f.answer);
    exchange->OnGone([exchange] {});
    exchange->Reply(200, "", "x", {});
    f.answer->Detach();
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace senko::server
