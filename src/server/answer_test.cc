// An answer between its handler and its connection, without a connection.
#include "server/answer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace senko::server {
namespace {

struct CountingBell : Bell {
  void Ring() override { ++rings; }
  std::atomic<int> rings = 0;
};

struct Fixture {
  std::shared_ptr<CountingBell> bell = std::make_shared<CountingBell>();
  std::shared_ptr<int> ticket = std::make_shared<int>();
  std::shared_ptr<Answer> answer = std::make_shared<Answer>("/x", bell, 1000, ticket);
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
    void Ring() override { seen = ticket.use_count(); }
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
  f.answer->Event(std::string(600, 'x'), "");
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  f.answer->Event(std::string(300, 'x'), "");
  EXPECT_FALSE(f.answer->gone());
  f.answer->Event(std::string(100, 'x'), "");
  EXPECT_TRUE(f.answer->gone());
  EXPECT_EQ(f.ticket.use_count(), 1);
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kOverflow);
  EXPECT_EQ(gone, 0);
  f.answer->MarkGone();
  f.answer->MarkGone();
  EXPECT_EQ(gone, 1);
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
