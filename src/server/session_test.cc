// A connection's timeouts and states, to the millisecond and without a socket.
#include "server/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/session_rig.h"

namespace senko::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kGet = "GET /echo HTTP/1.1\r\nHost: t\r\n\r\n";
const std::string kHold = "GET /hold HTTP/1.1\r\nHost: t\r\n\r\n";

TEST(Session, SilenceFromTheStartEndsAtTheHeaderTimeout) {
  SessionRig rig;
  EXPECT_EQ(rig.session->Deadline(), rig.now + seconds(10));
  rig.Wait(milliseconds(9'999));
  EXPECT_FALSE(rig.session->done());
  rig.Wait(milliseconds(1));
  EXPECT_TRUE(rig.session->done());
  EXPECT_EQ(rig.Output(), "");
  EXPECT_TRUE(rig.records.empty());
}

TEST(Session, HeaderTimeRunsFromItsFirstByte) {
  SessionRig rig;
  rig.Wait(seconds(9));
  for (int i = 0; i < 9; ++i) {
    rig.Input("G");
    rig.Wait(seconds(1));
  }
  rig.Wait(milliseconds(999));
  EXPECT_EQ(rig.Output(), "");
  rig.Wait(milliseconds(1));
  EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 408 "));
  EXPECT_TRUE(rig.session->lingering());
  ASSERT_EQ(rig.records.size(), 1u);
  EXPECT_EQ(rig.records[0].status, 408);
  rig.Wait(seconds(2));
  EXPECT_TRUE(rig.session->done());
}

TEST(Session, EmptyLinesAreNoRequest) {
  SessionRig rig;
  for (int i = 0; i < 9; ++i) {
    rig.Input("\r\n\n\r");
    rig.Wait(seconds(1));
  }
  rig.Wait(seconds(1));
  EXPECT_TRUE(rig.session->done());
  EXPECT_EQ(rig.Output(), "");
}

TEST(Session, BodyTimeRunsFromTheHead) {
  SessionRig rig;
  rig.Input("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n");
  for (int i = 0; i < 59; ++i) {
    rig.Wait(seconds(1));
    rig.Input("x");
  }
  EXPECT_EQ(rig.Output(), "");
  rig.Wait(seconds(1));
  EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(rig.gate->stats().buffered_body_bytes, 0);
}

TEST(Session, KeepAliveTimeRunsFromTheLastAnswer) {
  SessionRig rig;
  for (int i = 0; i < 3; ++i) {
    rig.Input(kGet);
    EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 200 "));
    rig.Wait(milliseconds(74'999));
    EXPECT_FALSE(rig.session->done());
  }
  rig.Wait(milliseconds(1));
  EXPECT_TRUE(rig.session->done());
}

TEST(Session, NoTimeIsSetForAnAnswerThatTakesLong) {
  SessionRig rig;
  rig.Input(kHold);
  EXPECT_EQ(rig.session->Deadline(), Session::TimePoint::max());
  rig.Wait(std::chrono::hours(10));
  rig.held[0]->Reply(200, "", "late");
  EXPECT_THAT(rig.Output(), HasSubstr("late"));
}

TEST(Session, CommentsComeAfterSilenceOnly) {
  SessionRig rig;
  rig.Input(kHold);
  rig.held[0]->BeginEvents();
  EXPECT_THAT(rig.Output(), HasSubstr("text/event-stream"));
  for (int i = 0; i < 5; ++i) {
    rig.Wait(milliseconds(9'999));
    rig.held[0]->Event("x");
    EXPECT_EQ(rig.Output(), "9\r\ndata: x\n\n\r\n");
  }
  rig.Wait(milliseconds(9'999));
  EXPECT_EQ(rig.Output(), "");
  rig.Wait(milliseconds(1));
  EXPECT_EQ(rig.Output(), "d\r\n: keepalive\n\n\r\n");
  rig.Wait(milliseconds(9'999));
  EXPECT_EQ(rig.Output(), "");
  rig.Wait(milliseconds(1));
  EXPECT_EQ(rig.Output(), "d\r\n: keepalive\n\n\r\n");
  rig.held[0]->EndEvents();
  EXPECT_EQ(rig.Output(), "0\r\n\r\n");
}

TEST(Session, AReaderMustTakeSomethingInTime) {
  SessionRig rig;
  bool gone = false;
  rig.Input(kHold);
  rig.held[0]->OnGone([&] { gone = true; });
  rig.held[0]->BeginEvents();
  rig.Output();
  rig.held[0]->Event(std::string(1 << 20, 'x'));
  rig.Output(1);
  for (int i = 0; i < 4; ++i) {  // enough each time
    rig.Wait(milliseconds(29'999));
    EXPECT_EQ(rig.Output(70'000).size(), 70'000u);
  }
  for (int i = 0; i < 29; ++i) {  // a byte a second is not
    rig.Wait(seconds(1));
    rig.Output(1);
  }
  EXPECT_FALSE(gone);
  rig.Wait(seconds(1));
  EXPECT_TRUE(gone);
  EXPECT_TRUE(rig.session->done());
  EXPECT_TRUE(rig.session->reset());
}

// Of a large answer a part in proportion: what it holds is not held for days.
TEST(Session, AReaderOfALargeAnswerMustTakeMoreInTime) {
  SessionRig rig;
  rig.Input(kHold);
  rig.held[0]->Reply(200, "", std::string(64 << 20, 'x'));
  rig.Output(1);
  rig.Wait(milliseconds(29'999));
  EXPECT_EQ(rig.Output(4'200'000).size(), 4'200'000u);  // a 16th is 4'194'314 bytes, the head's part with it
  rig.Wait(milliseconds(29'999));
  rig.Output(4'190'000);
  EXPECT_FALSE(rig.session->done());
  rig.Wait(milliseconds(1));
  EXPECT_TRUE(rig.session->done());
  EXPECT_EQ(rig.gate->stats().buffered_answer_bytes, 0);
}

// However slowly it is taken: after 16 times the timeout nothing of it is held.
TEST(Session, AWholeAnswerIsTakenWithinEightMinutes) {
  for (const size_t bytes : {size_t{1000}, size_t{1'000'000}, size_t{1} << 20, size_t{3'000'017}, size_t{50'000'000}}) {
    for (const size_t part : {16, 17, 20, 256}) {
      SessionRig rig;
      rig.Input(kHold);
      rig.held[0]->Reply(200, "", std::string(bytes, 'x'));
      const auto begin = rig.now;
      const size_t whole = bytes + rig.Output(1).size() + 200;  // the head's part with it
      size_t all = 1;
      while (rig.session->HasOutput() && !rig.session->done()) {
        rig.Wait(milliseconds(29'999));
        all += rig.Output(std::max(size_t{65536}, whole / part + 1)).size();
      }
      EXPECT_LE(rig.now - begin, std::chrono::minutes(8)) << bytes << " " << part;
      EXPECT_EQ(rig.gate->stats().buffered_answer_bytes, 0);
      // Whoever keeps up the pace gets all of it.
      EXPECT_EQ(rig.session->reset(), part > 16 && bytes >= (1 << 20)) << bytes << " " << part;
      EXPECT_EQ(all >= bytes, !rig.session->reset());
    }
  }
}

// It has its place, and its bytes are counted, while a client reads it; and the place is free before the end is there.
TEST(Session, ALargeAnswerKeepsItsPlaceUntilNearTheEnd) {
  for (const bool stream : {false, true}) {
    SessionRig rig;
    rig.Input(kHold);
    const auto stats = [&] { return rig.gate->stats(); };
    if (stream) {
      rig.held[0]->BeginEvents();
      rig.held[0]->Event(std::string(300'000, 'x'));
      rig.held[0]->EndEvents();
    } else {
      rig.held[0]->Reply(200, "", std::string(300'000, 'x'));
    }
    EXPECT_EQ(stats().requests_in_flight, 1);
    EXPECT_GE(stats().buffered_answer_bytes, 300'000);
    size_t read = 0, all = 0;
    while (rig.bell->rung || rig.session->HasOutput()) {
      const std::string out = rig.Output(10'000);
      read += out.size();
      if (all == 0) {
        const size_t head = out.find("\r\n\r\n") + 4;
        all = head + (stream ? 5 + 2 + 300'008 + 2 + 5 : 300'000);
      }
      if (read < all - 65536) {
        ASSERT_EQ(stats().requests_in_flight, 1) << read;
      }
      if (read > all - 65536) {
        ASSERT_EQ(stats().requests_in_flight, 0) << read;
      }
      ASSERT_EQ(stats().buffered_answer_bytes > 0, read < all) << read;
    }
    EXPECT_EQ(read, all);
  }
  // Nor can a client that takes all there is.
  SessionRig fast;
  fast.Input(kHold);
  fast.held[0]->Reply(200, "", std::string(300'000, 'x'));
  fast.session->OnRing(fast.now);
  const auto offered = [&] {
    size_t bytes = 0;
    for (const std::string_view piece : fast.session->Output()) bytes += piece.size();
    return bytes;
  };
  EXPECT_GE(offered(), 300'000u - 65536);
  EXPECT_LT(offered(), 300'000u);
  fast.session->Wrote(offered(), fast.now);
  EXPECT_EQ(fast.gate->stats().requests_in_flight, 0);
  EXPECT_EQ(offered(), 65536u);
  // Nothing of a small one can be read before.
  SessionRig small;
  small.Input(kHold);
  small.held[0]->Reply(200, "", std::string(60'000, 'x'));
  small.Output(1);
  EXPECT_EQ(small.gate->stats().requests_in_flight, 0);
  // Whoever leaves gives all back.
  SessionRig leaving;
  leaving.Input(kHold);
  leaving.held[0]->Reply(200, "", std::string(300'000, 'x'));
  leaving.Output(100'000);
  EXPECT_EQ(leaving.gate->stats().requests_in_flight, 1);
  leaving.session->OnError(leaving.now);
  EXPECT_EQ(leaving.gate->stats().requests_in_flight, 0);
  EXPECT_EQ(leaving.gate->stats().buffered_answer_bytes, 0);
}

TEST(Session, WithoutRoomForAnAnswerItIsRefused) {
  HttpOptions options;
  options.max_buffered_answer_bytes = 300'000;
  options.max_unsent_bytes = 100'000;
  SessionRig rig(options);
  Held others(rig.gate->answers());
  ASSERT_TRUE(others.Take(200'000));
  rig.Input(kHold + kHold);
  rig.held[0]->Reply(200, "", std::string(110'000, 'x'));
  const std::string out = rig.Output();
  EXPECT_THAT(out, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(out, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(rig.gate->stats().refused, 1u);
  EXPECT_EQ(rig.gate->stats().no_room, 1u);
  rig.held[1]->Reply(200, "", std::string(90'000, 'x'));  // the connection goes on, and this has room
  EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 200 "));
  ASSERT_EQ(rig.records.size(), 2u);
  EXPECT_TRUE(rig.records[0].no_room && !rig.records[1].no_room);
  EXPECT_EQ(rig.records[0].status, 503);
  ASSERT_TRUE(others.Take(100'000));
  rig.Input("GET /health HTTP/1.1\r\nHost: t\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n");
  const std::string answers = rig.Output();
  EXPECT_THAT(answers, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answers, HasSubstr("HTTP/1.1 404 "));
  EXPECT_EQ(rig.gate->stats().buffered_answer_bytes, 300'000);
  EXPECT_EQ(rig.gate->stats().no_room, 1u);
}

TEST(Session, AnAnswerThatNeverHasRoomIsTheRequestsFault) {
  HttpOptions options;
  options.max_buffered_answer_bytes = options.max_unsent_bytes = 100'000;
  SessionRig rig(options);
  rig.Input(kHold);
  rig.held[0]->Reply(200, "", std::string(100'001, 'x'));
  const std::string out = rig.Output();
  EXPECT_THAT(out, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(out, HasSubstr("answer_too_large"));
  EXPECT_EQ(out.find("Retry-After"), std::string::npos);
  ASSERT_EQ(rig.records.size(), 1u);
  EXPECT_TRUE(rig.records[0].no_room);
  EXPECT_EQ(rig.records[0].status, 400);
  EXPECT_EQ(rig.gate->stats().no_room, 1u);
  EXPECT_EQ(rig.gate->stats().refused, 0u);  // not for load
}

// The operator can tell: a stream that was cut is no client that left.
TEST(Session, WithoutRoomAStreamIsCutAndSaysSo) {
  for (const bool much : {false, true}) {  // being sent when there is no room
    SessionRig rig;
    Held others(rig.gate->answers());
    ASSERT_TRUE(others.Take(rig.gate->answers()->limit()));
    rig.Input(kHold);
    bool gone = false;
    rig.held[0]->OnGone([&] { gone = true; });
    rig.held[0]->BeginEvents();
    EXPECT_THAT(rig.Output(), HasSubstr("text/event-stream"));
    rig.held[0]->Event(std::string(much ? 65'500 : 60'000, 'x'));
    rig.Output(10);
    rig.held[0]->Event(std::string(10'000, 'y'));
    EXPECT_TRUE(rig.held[0]->gone());
    EXPECT_EQ(rig.held[0]->refused(), 503);
    const std::string out = rig.Output();
    EXPECT_TRUE(gone);
    EXPECT_EQ(rig.session->reset(), much);
    if (!much) {
      EXPECT_THAT(out, HasSubstr("xxx\n\n\r\n"));
      EXPECT_EQ(out.find('y' + std::string("yyy")), std::string::npos);
      EXPECT_THAT(out, HasSubstr("data: {\"error\":{"));
      EXPECT_TRUE(out.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")) << out.substr(out.size() - 300);
      rig.Input(kGet);  // the connection goes on
      EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 200 "));
    }
    ASSERT_FALSE(rig.records.empty());
    EXPECT_TRUE(rig.records[0].no_room);
    EXPECT_FALSE(rig.records[0].gone);
    EXPECT_EQ(rig.records[0].status, 200);
    EXPECT_EQ(rig.gate->stats().clients_gone, 0u);
    EXPECT_EQ(rig.gate->stats().no_room, 1u);
    EXPECT_EQ(rig.gate->stats().requests_in_flight, 0);
    EXPECT_EQ(rig.gate->stats().buffered_answer_bytes, rig.gate->answers()->limit());
  }
}

// It was refused, and then its client left before it could be told.
TEST(Session, WithoutRoomAndWithoutAClient) {
  for (const bool stream : {false, true}) {
    SessionRig rig;
    Held others(rig.gate->answers());
    ASSERT_TRUE(others.Take(rig.gate->answers()->limit()));
    rig.Input(kHold);
    if (stream) {
      rig.held[0]->BeginEvents();
      rig.held[0]->Event(std::string(100'000, 'x'));
    } else {
      rig.held[0]->Reply(200, "", std::string(100'000, 'x'));
    }
    rig.session->OnError(rig.now);
    ASSERT_EQ(rig.records.size(), 1u);
    EXPECT_TRUE(rig.records[0].gone && rig.records[0].no_room);
    EXPECT_EQ(rig.records[0].status, 499);
    EXPECT_EQ(rig.gate->stats().clients_gone, 1u);
    EXPECT_EQ(rig.gate->stats().no_room, 1u);
  }
}

TEST(Session, OutputIsTheSameHoweverItIsTaken) {
  for (const size_t step : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    SessionRig rig;
    rig.Input(kHold + kGet);
    rig.held[0]->BeginEvents();
    std::string out;
    for (int i = 0; i < 30; ++i) {
      rig.held[0]->Event(std::string(i, 'a'), i % 3 == 0 ? "name" : "");
      out += rig.Output(step);
    }
    rig.held[0]->EndEvents();
    while (rig.session->HasOutput() || rig.bell->rung) out += rig.Output(step);
    std::string body;
    size_t at = out.find("\r\n\r\n") + 4;
    for (;;) {
      const size_t size = std::stoull(out.substr(at), nullptr, 16);
      at = out.find("\r\n", at) + 2;
      body += out.substr(at, size);
      ASSERT_EQ(out.substr(at + size, 2), "\r\n");
      at += size + 2;
      if (size == 0) break;
    }
    std::string expected;
    for (int i = 0; i < 30; ++i) {
      expected += (i % 3 == 0 ? "event: name\ndata: " : "data: ") + std::string(i, 'a') + "\n\n";
    }
    EXPECT_EQ(body, expected) << step;
    EXPECT_THAT(out.substr(at), StartsWith("HTTP/1.1 200 OK"));  // the pipelined one
  }
}

TEST(Session, WhatIsSentAheadIsBounded) {
  SessionRig rig;
  rig.Input(kHold);
  EXPECT_EQ(rig.session->InputRoom(), 16384u);
  rig.Input(std::string(10'000, 'x'));
  EXPECT_EQ(rig.session->InputRoom(), 6384u);
  rig.Input(std::string(20'000, 'x'));
  EXPECT_EQ(rig.session->InputRoom(), 0u);
}

// A record may wait long for its other half.
TEST(Session, RecordsAreSmall) {
  SessionRig rig;
  rig.Input("GET /" + std::string(50'000, 'a') + " HTTP/1.1\r\nHost: t\r\n\r\n");
  rig.Output();
  rig.Input(std::string(50'000, 'B') + " / HTTP/1.1\r\nHost: t\r\n\r\n");
  rig.Output();
  ASSERT_EQ(rig.records.size(), 2u);
  EXPECT_EQ(rig.records[0].path, "/" + std::string(255, 'a'));
  EXPECT_LE(rig.records[1].method.size(), 256u);
}

TEST(Session, BodiesOfRefusedRequestsAreReadOrCutOff) {
  SessionRig rig;
  rig.Input("POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 65536\r\n\r\nab");
  EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 404 "));
  EXPECT_FALSE(rig.session->lingering());
  rig.Input(std::string(65'534, 'x') + kGet);
  EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 200 "));
  rig.Input("POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 65537\r\n\r\nab");
  EXPECT_THAT(rig.Output(), HasSubstr("Connection: close"));
  EXPECT_TRUE(rig.session->lingering());
  rig.Input(std::string(65'535, 'x') + kGet);
  EXPECT_EQ(rig.Output(), "");

  SessionRig waiting;
  waiting.Input("POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nab");
  waiting.Output();
  waiting.Wait(seconds(60));
  EXPECT_TRUE(waiting.session->done());
}

TEST(Session, LingeringEndsByTimeOrBytes) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  for (const bool by_time : {false, true}) {
    SessionRig rig(options);
    rig.Input("junk\r\n\r\n");
    EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 400 "));
    rig.Input(std::string(60'000, 'x'));
    EXPECT_TRUE(rig.session->lingering());
    if (by_time) {
      rig.Wait(seconds(2));
    } else {
      rig.Input(std::string(60'000, 'x'));
    }
    EXPECT_TRUE(rig.session->done());
  }
}

TEST(Session, LingeringGoesOnWhileAClientSends) {
  SessionRig rig;
  rig.Input("junk\r\n\r\n");
  rig.Output();
  for (int i = 0; i < 20; ++i) {
    rig.Wait(milliseconds(1500));
    EXPECT_EQ(rig.session->done(), i == 19) << i;
    rig.Input("x");
  }
}

TEST(Session, OneTooManyMayAskForHealth) {
  SessionRig rig({}, true);
  rig.Input("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(rig.Output(), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(rig.session->lingering());
  SessionRig other({}, true);
  other.Input(kGet);
  const std::string out = other.Output();
  EXPECT_THAT(out, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(out, HasSubstr("Retry-After: 1\r\n"));
  SessionRig silent({}, true);
  silent.Wait(seconds(1));
  EXPECT_THAT(silent.Output(), StartsWith("HTTP/1.1 503 "));
}

TEST(Session, ContinueIsSentBeforeAnythingElse) {
  SessionRig rig;
  rig.Input("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(rig.Output(), "HTTP/1.1 100 Continue\r\n\r\n");
  rig.Input("ab");
  EXPECT_THAT(rig.Output(), HasSubstr("\r\n\r\nab"));
  // Not yet sent when the answer is there.
  rig.Input("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\ncd");
  const std::string out = rig.Output();
  EXPECT_THAT(out, StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(out, HasSubstr("\r\n\r\ncd"));
}

TEST(Session, ABadChunkAfterContinueStillSaysBoth) {
  SessionRig rig;
  rig.Input("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  rig.Output(5);
  rig.Input("zz\r\n");
  EXPECT_THAT(rig.Output(), StartsWith("1.1 100 Continue\r\n\r\nHTTP/1.1 400 "));
}

TEST(Session, TheEndOfInputDuringAnAnswerIsGone) {
  SessionRig rig;
  rig.Input(kHold);
  bool gone = false;
  rig.held[0]->OnGone([&] { gone = true; });
  rig.session->OnEnd(rig.now);
  EXPECT_TRUE(gone);
  EXPECT_TRUE(rig.session->done());
  EXPECT_EQ(rig.records[0].status, 499);

  SessionRig answered;  // said, but not yet sent
  answered.Input(kHold);
  answered.held[0]->OnGone([&] { ADD_FAILURE(); });
  answered.held[0]->Reply(200, "", "there");
  answered.session->OnEnd(answered.now);
  EXPECT_THAT(answered.Output(), HasSubstr("there"));
  EXPECT_TRUE(answered.session->done());
  EXPECT_FALSE(answered.session->reset());
}

TEST(Session, HeadGetsNoBodyWhateverTheHandlerDoes) {
  SessionRig rig;
  rig.Input("HEAD /hold HTTP/1.1\r\nHost: t\r\n\r\n" + kGet);
  rig.held[0]->BeginEvents();
  rig.held[0]->Event("x");
  const std::string out = rig.Output();
  EXPECT_THAT(out, StartsWith("HTTP/1.1 200 OK"));
  const size_t end = out.find("\r\n\r\n") + 4;
  EXPECT_THAT(out.substr(end), StartsWith("HTTP/1.1 200 OK"));
}

TEST(Session, DrainClosesAfterTheRunningAnswer) {
  SessionRig rig;
  rig.Input(kHold);
  rig.held[0]->BeginEvents();
  rig.Output();
  rig.gate->BeginDrain();
  EXPECT_FALSE(rig.gate->WaitUntilIdle(milliseconds(0)));
  rig.held[0]->EndEvents();
  EXPECT_EQ(rig.Output(), "0\r\n\r\n");
  EXPECT_TRUE(rig.session->lingering());
  EXPECT_TRUE(rig.gate->WaitUntilIdle(milliseconds(0)));
}

}  // namespace
}  // namespace senko::server
