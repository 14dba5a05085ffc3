// An answer between its handler and its connection, without a connection.
#include "server/answer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace senko::server {
namespace {

struct CountingBell : Bell {
  void Ring() noexcept override { ++rings; }
  std::atomic<int> rings = 0;
};

struct Fixture {
  std::shared_ptr<CountingBell> bell = std::make_shared<CountingBell>();
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>(100'000'000);
  std::shared_ptr<Ledger> bodies = std::make_shared<Ledger>(100);
  std::shared_ptr<int> place = std::make_shared<int>();
  std::shared_ptr<Answer> answer = Make(bell, 1024);
  Answer::Batch batch;

  std::shared_ptr<Answer> Make(const std::shared_ptr<Bell>& rung, size_t max_unsent_bytes) {
    Held body(bodies);
    body.Force(10);
    return std::make_shared<Answer>("/x", rung, max_unsent_bytes, Answer::Share{ledger, place, std::move(body)});
  }
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

TEST(Answer, TheBodyGoesBeforeTheBellRingsAndThePlaceWithTheEnd) {
  struct Looking : Bell {
    explicit Looking(std::shared_ptr<Ledger> watched) : bodies(std::move(watched)) {}
    void Ring() noexcept override { seen = bodies->held(); }
    std::shared_ptr<Ledger> bodies;
    std::atomic<int64_t> seen = -1;
  };
  for (const bool stream : {false, true}) {
    Fixture f;
    f.answer.reset();
    EXPECT_EQ(f.bodies->held(), 0);
    auto bell = std::make_shared<Looking>(f.bodies);
    auto answer = f.Make(bell, 1024);
    if (stream) {
      answer->BeginEvents();
      EXPECT_EQ(bell->seen, 10);
      ASSERT_EQ(answer->Take(&f.batch), Answer::Taken::kBatch);
      EXPECT_EQ(f.batch.place, nullptr);
      answer->EndEvents();
    } else {
      answer->Reply(200, "", "x", {});
    }
    EXPECT_EQ(bell->seen, 0);
    EXPECT_EQ(f.place.use_count(), 2);
    ASSERT_EQ(answer->Take(&f.batch), Answer::Taken::kBatch);
    f.batch.place.reset();
    EXPECT_EQ(f.place.use_count(), 1);
  }
}

// Counted from the moment it is said until whoever took it lets go.
TEST(Answer, BytesAreCountedUntilTheyAreSent) {
  Fixture f;
  f.answer->Reply(200, "", std::string(50'000, 'x'), {});
  EXPECT_EQ(f.ledger->held(), 50'000);
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  f.answer.reset();
  EXPECT_EQ(f.ledger->held(), 50'000);
  f.batch = {};
  EXPECT_EQ(f.ledger->held(), 0);

  Fixture stream;
  stream.answer->BeginEvents();
  for (int i = 0; i < 3; ++i) stream.answer->Event("12345", i == 0 ? "name" : "");
  EXPECT_EQ(stream.ledger->held(), 12 + 3 * 13);
  ASSERT_EQ(stream.answer->Take(&stream.batch), Answer::Taken::kBatch);
  EXPECT_EQ(static_cast<size_t>(stream.ledger->held()), stream.batch.data.size());
  stream.answer->Event("12345", "");
  EXPECT_EQ(stream.ledger->held(), 12 + 4 * 13);
  stream.batch.held.Clear();
  ASSERT_EQ(stream.answer->Take(&stream.batch), Answer::Taken::kBatch);
  EXPECT_EQ(stream.ledger->held(), 13);
  stream.answer->Event("12345", "");
  stream.answer->MarkGone();
  EXPECT_EQ(stream.ledger->held(), 13);
  stream.batch = {};
  EXPECT_EQ(stream.ledger->held(), 0);
}

// The client may go between the end of an answer and its being taken, and the handler may keep its exchange.
TEST(Answer, AnEndThatNobodyTakesHoldsNothing) {
  Fixture f;
  f.answer->Reply(200, "", std::string(50'000, 'x'), {});
  f.answer->MarkGone();
  EXPECT_EQ(f.ledger->held(), 0);
  EXPECT_EQ(f.place.use_count(), 1);
}

TEST(Answer, WithoutRoomAWholeAnswerIsASmallRefusal) {
  Fixture f;
  Held others(f.ledger);
  others.Force(f.ledger->limit() - 70'000);
  f.answer->Reply(200, "text/plain", std::string(70'001, 'x'), {{"A", "b"}});
  EXPECT_EQ(f.answer->refused(), 503);
  EXPECT_EQ(f.ledger->refusals(), 1u);
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  EXPECT_EQ(f.batch.status, 503);
  EXPECT_EQ(f.batch.headers, (Headers{{"Retry-After", "1"}}));
  EXPECT_LT(f.batch.data.size(), 1000u);
  EXPECT_EQ(f.batch.held.bytes(), static_cast<int64_t>(f.batch.data.size()));
  EXPECT_TRUE(f.batch.ends && f.batch.refused);

  Fixture fits;
  others = Held(fits.ledger);
  others.Force(fits.ledger->limit() - 70'000);
  fits.answer->Reply(200, "text/plain", std::string(70'000, 'x'), {});
  EXPECT_EQ(fits.answer->refused(), 0);
  EXPECT_EQ(fits.ledger->refusals(), 0u);
  ASSERT_EQ(fits.answer->Take(&fits.batch), Answer::Taken::kBatch);
  EXPECT_EQ(fits.batch.status, 200);

  Fixture small;  // as refusals are
  others = Held(small.ledger);
  others.Force(small.ledger->limit() + 1);
  small.answer->Reply(400, "text/plain", std::string(64 << 10, 'x'), {});
  ASSERT_EQ(small.answer->Take(&small.batch), Answer::Taken::kBatch);
  EXPECT_EQ(small.batch.status, 400);

  Fixture never;  // to try again would be no use
  never.answer->Reply(200, "text/plain", std::string(100'000'001, 'x'), {});
  ASSERT_EQ(never.answer->Take(&never.batch), Answer::Taken::kBatch);
  EXPECT_EQ(never.batch.status, 400);
  EXPECT_EQ(never.answer->refused(), 400);
  EXPECT_TRUE(never.batch.headers.empty());
  for (const char* said : {"answer_too_large", "invalid_request_error", "--max-buffered-answer-bytes", "100000000"}) {
    EXPECT_NE(never.batch.data.find(said), std::string::npos) << never.batch.data;
  }
}

// What a step says is queued before anybody can take it: here a small event of each of 128 choices.
TEST(Answer, WithoutRoomAStepOfManyChoicesHasSome) {
  Fixture f;
  f.answer = f.Make(f.bell, 1 << 20);
  Held others(f.ledger);
  others.Force(f.ledger->limit());
  f.answer->BeginEvents();
  for (int step = 0; step < 100; ++step) {
    for (int choice = 0; choice < 128; ++choice) f.answer->Event(std::string(280, 'x'), "");
    ASSERT_FALSE(f.answer->gone()) << step;
    ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
    ASSERT_EQ(f.batch.data.size(), 128u * 288);
    f.batch.held.Clear();
    ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kNothing);
  }
  EXPECT_EQ(f.ledger->refusals(), 0u);
}

TEST(Answer, WithoutRoomAStreamThatIsReadGoesOn) {
  Fixture f;
  f.answer = f.Make(f.bell, 1 << 20);
  Held others(f.ledger);
  others.Force(f.ledger->limit());
  f.answer->BeginEvents();
  for (int i = 0; i < 1000; ++i) {
    f.answer->Event(std::string(1000, 'x'), "");
    ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch) << i;
    f.batch.held.Clear();  // sent
    if (i % 2 == 0) {
      ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kNothing);
    }
  }
  EXPECT_FALSE(f.answer->gone());
  int said = 0;
  for (; said < 100 && !f.answer->gone(); ++said) f.answer->Event(std::string(1000, 'x'), "");
  EXPECT_TRUE(f.answer->gone());
  EXPECT_EQ(said, 65);  // 65 of 1008 bytes, with the one that is being sent, are less than 64 KiB
}

// A client of whose stream little is being sent is told, and the handler, too; nothing more is taken than always may
// be.
TEST(Answer, WithoutRoomAStreamEndsWithAnError) {
  for (const auto& [path, begin, end] :
       {std::tuple{"/v1/chat/completions", "data: {\"error\":{", "}\n\ndata: [DONE]\n\n"},
        std::tuple{"/v1/responses", "event: error\ndata: {\"error\":{", "}\n\n"},
        std::tuple{"/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{", "}\n\n"}}) {
    for (const bool sending : {false, true}) {
      Fixture f;
      Held body(f.bodies);
      body.Force(10);
      f.answer = std::make_shared<Answer>(path, f.bell, 1 << 20, Answer::Share{f.ledger, f.place, std::move(body)});
      Held others(f.ledger);
      others.Force(f.ledger->limit());
      int gone = 0;
      f.answer->OnGone([&] { ++gone; });
      f.answer->BeginEvents();
      Answer::Batch sent;
      if (sending) {
        f.answer->Event(std::string(60'000, 'x'), "");
        ASSERT_EQ(f.answer->Take(&sent), Answer::Taken::kBatch);
      }
      f.answer->Event("queued", "");
      f.answer->Event(std::string(65'536, 'x'), "");
      EXPECT_TRUE(f.answer->gone());
      EXPECT_FALSE(f.answer->overflowed());
      EXPECT_EQ(f.answer->refused(), 503);
      EXPECT_EQ(f.ledger->refusals(), 1u);
      EXPECT_LE(f.ledger->held(), f.ledger->limit() + (64 << 10));
      f.answer->Event("late", "");
      f.answer->EndEvents();
      f.answer->Abandon();
      sent = {};
      ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
      EXPECT_EQ(f.batch.begins, !sending);
      EXPECT_TRUE(f.batch.ends && f.batch.cut && !f.batch.broken);
      EXPECT_TRUE(f.batch.data.starts_with(begin)) << f.batch.data;
      EXPECT_TRUE(f.batch.data.ends_with(end)) << f.batch.data;
      EXPECT_NE(f.batch.data.find("overloaded"), std::string::npos);
      EXPECT_EQ(f.batch.held.bytes(), static_cast<int64_t>(f.batch.data.size()));
      f.answer->MarkGone();  // as its connection does: the handler has not heard of it
      EXPECT_EQ(gone, 1);
      f.batch = {};
      EXPECT_EQ(f.ledger->held(), f.ledger->limit());
      EXPECT_EQ(f.place.use_count(), 1);
      EXPECT_EQ(f.bodies->held(), 0);
    }
  }
}

TEST(Answer, WithoutRoomAStreamOfWhichMuchIsBeingSentIsDropped) {
  Fixture f;
  f.answer = f.Make(f.bell, 1 << 20);
  Held others(f.ledger);
  others.Force(f.ledger->limit());
  f.answer->BeginEvents();
  f.answer->Event(std::string(65'500, 'x'), "");
  ASSERT_EQ(f.answer->Take(&f.batch), Answer::Taken::kBatch);
  f.answer->Event(std::string(100, 'x'), "");
  EXPECT_TRUE(f.answer->overflowed());
  EXPECT_EQ(f.answer->refused(), 503);
  EXPECT_EQ(f.place.use_count(), 1);
  f.batch = {};
  EXPECT_EQ(f.ledger->held(), f.ledger->limit());
  EXPECT_EQ(f.answer->Take(&f.batch), Answer::Taken::kOverflow);
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
  EXPECT_EQ(f.place.use_count(), 1);
  EXPECT_EQ(f.answer->refused(), 0);  // there was room: it is the client
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
    EXPECT_EQ(f.place.use_count(), 1);
    EXPECT_EQ(f.bodies->held(), 0);
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
