// Window snapshots, and what is kept of steps and draws that fail: nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "engine/scheduler_rig.h"

namespace senko::engine {
namespace {

TEST(Scheduler, WithoutReplayHitsAreAtSnapshotsAndExact) {
  SchedulerOptions options;
  options.encoder_replay = false;
  options.decoder_replay = config::DecoderReplay::kFull;
  Rig rig(options, 32, 16, 64, 4, 8);
  rig.Complete(Rig::MakeRequest(1, 50, 60));
  EXPECT_EQ(rig.snapshots->size(), 2);  // behind the prompt, and of the turn's page boundaries the last
  Request next = Rig::MakeRequest(2, 50, 5);
  for (int32_t token : rig.tokens[SequenceId(1, 0)]) next.prompt.ids.push_back(token);
  next.prompt.ids.push_back(7);
  rig.plans.clear();
  rig.Complete(next);
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 96);
  EXPECT_EQ(rig.SpanOf(rig.plans[0], 2)->begin, 96);
  Rig cold(options, 32, 16, 64, 4, 0);
  next.id = 2;
  cold.Complete(next);
  EXPECT_EQ(rig.tokens[SequenceId(2, 0)], cold.tokens[SequenceId(2, 0)]);
}

// A repeated prompt needs a token to run behind its hit, so the snapshot stands where it can be used.
TEST(Scheduler, APromptOfWholePagesHitsItsOwnSnapshot) {
  SchedulerOptions options;
  options.encoder_replay = false;
  options.decoder_replay = config::DecoderReplay::kFull;
  for (const int64_t prompt : {48, 49, 63, 64}) {
    Rig rig(options, 32, 16, 64, 4, 8);
    rig.Complete(Rig::MakeRequest(1, prompt, 2));
    rig.Complete(Rig::MakeRequest(2, prompt, 2));
    EXPECT_EQ(rig.cached[SequenceId(2, 0)], (prompt - 1) / 16 * 16) << prompt;
    EXPECT_EQ(rig.tokens[SequenceId(1, 0)].size(), 2u);
  }
}

// What a failed step was to save was never written; nor may a step behind it save what it computed from that.
TEST(Scheduler, AFailedStepLeavesNoSnapshot) {
  SchedulerOptions options;
  options.encoder_replay = false;
  options.decoder_replay = config::DecoderReplay::kFull;
  options.max_rows = 48;
  for (const bool at_the_snapshot : {true, false}) {
    Rig rig(options, 32, 16, 64, 4, 8);
    rig.scheduler->Add(Rig::MakeRequest(1, at_the_snapshot ? 50 : 100, 5));
    auto failing = rig.scheduler->Plan(), behind = rig.scheduler->Plan();
    ASSERT_TRUE(failing && behind);
    EXPECT_EQ((at_the_snapshot ? *failing : *behind).save_snapshots.size(), 1u);
    const StepResult failed = rig.executor->Fail(*failing);
    const StepResult ran = rig.executor->Run(*behind, 0, 0);
    rig.scheduler->Advance(failed);
    rig.Events();
    EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kNumerical);
    rig.scheduler->Advance(ran);
    rig.RunOut();
    EXPECT_EQ(rig.snapshots->size(), 0);
    rig.Complete(Rig::MakeRequest(2, at_the_snapshot ? 50 : 100, 5));
    EXPECT_EQ(rig.cached[SequenceId(2, 0)], 0);
  }
}

// The prompt's first half is lost with its step; the choices begin behind its second half, in a step already planned.
TEST(Scheduler, AFailedStepEndsTheChoicesThatForkBehindIt) {
  SchedulerOptions options;
  options.max_rows = 16;
  Rig rig(options);
  Request request = Rig::MakeRequest(1, 24, 5);
  request.choices = 3;
  rig.scheduler->Add(request);
  rig.scheduler->Add(Rig::MakeRequest(2, 4, 5, 500));
  auto failing = rig.scheduler->Plan();
  ASSERT_TRUE(failing && failing->spans.size() == 2);
  rig.scheduler->Advance(rig.executor->Run(*failing, 0, 0));
  failing = rig.scheduler->Plan();
  auto behind = rig.scheduler->Plan();
  ASSERT_TRUE(failing && behind);
  const StepResult failed = rig.executor->Fail(*failing), ran = rig.executor->Run(*behind, 0, 0);
  rig.scheduler->Advance(failed);
  rig.scheduler->Advance(ran);
  rig.Events();
  for (int64_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(rig.finished[SequenceId(1, choice)], Finish::kNumerical) << choice;
    EXPECT_TRUE(rig.tokens[SequenceId(1, choice)].empty());
  }
  rig.RunOut();
}

// Two turns of the same prompt: the one whose snapshot came second does not own the first's.
TEST(Scheduler, ATurnReplacesItsOwnSnapshotOnly) {
  SchedulerOptions options;
  options.encoder_replay = false;
  options.decoder_replay = config::DecoderReplay::kFull;
  Rig rig(options, 32, 16, 64, 4, 8);
  const auto complete = [&](Request request) {  // every draw is 7
    rig.scheduler->Add(std::move(request));
    while (rig.Step([](StepResult& r) { std::fill(r.tokens.begin(), r.tokens.end(), 7); })) {
    }
  };
  complete(Rig::MakeRequest(1, 50, 20));  // its turn's snapshot is at 64
  EXPECT_EQ(rig.snapshots->size(), 2);
  complete(Rig::MakeRequest(2, 50, 40));  // passes 64 too, where the name is taken, and ends with its own at 80
  EXPECT_EQ(rig.snapshots->size(), 3);
  Request next = Rig::MakeRequest(3, 50, 2);
  next.prompt.ids.resize(64, 7);
  next.prompt.ids.insert(next.prompt.ids.end(), {1, 2});
  complete(next);
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 64);
}

// What led to a row that is not finite may lie in the pages of its sequence.
TEST(Scheduler, PagesBehindARowThatIsNotFiniteAreNotFoundAgain) {
  SchedulerOptions options;
  options.max_rows = 32;
  Rig rig(options, 8, 16);
  rig.Complete(Rig::MakeRequest(1, 33, 1));
  rig.scheduler->Add(Rig::MakeRequest(2, 100, 20));  // adopts two pages, writes the others over several steps
  while (rig.tokens[SequenceId(2, 0)].size() < 3) ASSERT_TRUE(rig.Step());
  rig.Step([](StepResult& r) { r.tokens[0] = kNotFinite; });
  rig.RunOut();
  EXPECT_EQ(rig.finished[SequenceId(2, 0)], Finish::kNumerical);
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 32);
  rig.Complete(Rig::MakeRequest(3, 100, 2));
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 32);
  EXPECT_EQ(rig.tokens[SequenceId(3, 0)].size(), 2u);
}

// Its client leaves, or a stop string is found, while the step that shows the fault still runs: its pages were offered
// by then.
TEST(Scheduler, PagesOfASequenceThatEndedBeforeItsFailureShowedAreNotFoundAgain) {
  for (const bool prompt_done : {false, true}) {
    for (const Finish ended : {Finish::kCancelled, Finish::kStop}) {
      SchedulerOptions options;
      options.max_rows = 32;
      Rig rig(options, 8, 16);
      rig.scheduler->Add(Rig::MakeRequest(1, 100, 20));
      std::optional<StepPlan> running;
      while (!running) {  // the step of the first draw, or one behind it
        if (prompt_done ? !rig.tokens.empty() : rig.plans.size() == 3) {
          running = rig.scheduler->Plan();
          ASSERT_TRUE(running && running->samples.size() == 1);
        } else {
          ASSERT_TRUE(rig.Step());
        }
      }
      rig.scheduler->End(SequenceId(1, 0), ended);
      StepResult result = rig.executor->Run(*running, 0, 0);
      result.tokens[0] = kNotFinite;
      rig.scheduler->Advance(result);
      rig.Events();
      EXPECT_EQ(rig.finished[SequenceId(1, 0)], ended);
      rig.RunOut();
      rig.Complete(Rig::MakeRequest(2, 100, 2));
      EXPECT_EQ(rig.cached[SequenceId(2, 0)], 0);
    }
  }
}

// Whoever fails with its first token may have adopted the fault. It is the last one.
TEST(Scheduler, AnAdoptedPrefixThatSpoilsTheFirstTokenIsNotFoundAgain) {
  Rig rig({}, 8, 16);
  rig.Complete(Rig::MakeRequest(1, 100, 1));
  const auto fail = [](StepResult& r) { std::fill(r.tokens.begin(), r.tokens.end(), kNotFinite); };
  rig.scheduler->Add(Rig::MakeRequest(2, 110, 5));
  while (rig.Step(fail)) {
  }
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 96);
  EXPECT_EQ(rig.finished[SequenceId(2, 0)], Finish::kNumerical);
  rig.Complete(Rig::MakeRequest(3, 110, 5));
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 0);
  EXPECT_EQ(rig.finished[SequenceId(3, 0)], Finish::kLength);
}

// A step that does not run says nothing against what its sequences have adopted.
TEST(Scheduler, AnAdoptedPrefixOutlivesAFailedStep) {
  Rig rig({}, 8, 16);
  rig.Complete(Rig::MakeRequest(1, 100, 1));
  rig.scheduler->Add(Rig::MakeRequest(2, 110, 5));
  const auto plan = rig.scheduler->Plan();
  ASSERT_TRUE(plan);
  rig.scheduler->Advance(rig.executor->Fail(*plan));
  rig.RunOut();
  EXPECT_EQ(rig.finished[SequenceId(2, 0)], Finish::kNumerical);
  rig.Complete(Rig::MakeRequest(3, 110, 5));
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 96);
}

// Where the request itself leaves nothing to draw, what was computed is sound.
TEST(Scheduler, PagesOfASequenceThatMayDrawNothingAreFound) {
  Rig rig({}, 8, 16);
  rig.scheduler->Add(Rig::MakeRequest(1, 100, 5));
  while (rig.Step([](StepResult& r) { std::fill(r.tokens.begin(), r.tokens.end(), kNoToken); })) {
  }
  EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kNothingToDraw);
  rig.Complete(Rig::MakeRequest(2, 100, 5));
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 96);
}

// A preempted sequence may fail in a step that was running: what it wrote before is its own all the same.
TEST(Scheduler, PagesOfAPreemptedSequenceThatFailsAreNotFoundAgain) {
  Rig rig({}, 8, 16, 9);
  rig.scheduler->Add(Rig::MakeRequest(1, 50, 30));
  rig.scheduler->Add(Rig::MakeRequest(2, 50, 30, 500));
  std::deque<StepPlan> running;
  while (rig.scheduler->stats().preemptions == 0) {
    if (auto plan = rig.scheduler->Plan()) running.push_back(std::move(*plan));
    if (running.size() < 2 || rig.scheduler->stats().preemptions > 0) continue;
    rig.scheduler->Advance(rig.executor->Run(running.front(), 0, 0));
    running.pop_front();
  }
  ASSERT_EQ(rig.scheduler->Find(SequenceId(2, 0))->state, State::kWaiting);
  ASSERT_NE(rig.SpanOf(running.front(), 2), nullptr);
  for (bool first = true; !running.empty(); first = false) {
    StepResult result = rig.executor->Run(running.front(), 0, 0);
    for (size_t i = 0; first && i < result.tokens.size(); ++i) {
      if (running.front().samples[i].sequence == SequenceId(2, 0)) result.tokens[i] = kNotFinite;
    }
    rig.scheduler->Advance(result);
    running.pop_front();
  }
  rig.Events();
  EXPECT_EQ(rig.finished[SequenceId(2, 0)], Finish::kNumerical);
  rig.RunOut();
  EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kLength);
  rig.Complete(Rig::MakeRequest(3, 50, 2, 500));
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 0);
}

// The same of its snapshots: of the prompt's, and of the one that the step with the failed draw takes (row 63).
TEST(Scheduler, SnapshotsBehindARowThatIsNotFiniteAreGone) {
  SchedulerOptions options;
  options.encoder_replay = false;
  options.decoder_replay = config::DecoderReplay::kFull;
  for (const size_t tokens : {size_t{0}, size_t{5}, size_t{14}}) {
    Rig rig(options, 32, 16, 64, 4, 8);
    rig.scheduler->Add(Rig::MakeRequest(1, 50, 20));
    while (rig.tokens[SequenceId(1, 0)].size() < tokens || rig.snapshots->size() == 0) ASSERT_TRUE(rig.Step());
    ASSERT_EQ(rig.tokens[SequenceId(1, 0)].size(), tokens);
    bool saves = false;
    ASSERT_TRUE(rig.Step([](StepResult& r) { r.tokens[0] = kNotFinite; }));
    saves = !rig.plans.back().save_snapshots.empty();
    EXPECT_EQ(saves, tokens == 14);
    EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kNumerical);
    EXPECT_EQ(rig.snapshots->size(), 0);
    rig.RunOut();
  }
}

// An arrival may begin from its snapshot in a step that has no row for it: the step writes its slot nevertheless.
TEST(Scheduler, ASlotThatIsBeingLoadedIsNotGivenToAnother) {
  SchedulerOptions options;
  options.encoder_replay = false;
  options.decoder_replay = config::DecoderReplay::kFull;
  options.max_rows = 16;
  Rig rig(options, 32, 16, 64, 12, 8);
  rig.Complete(Rig::MakeRequest(1, 40, 1));
  for (uint64_t id = 2; id < 10; ++id) rig.scheduler->Add(Rig::MakeRequest(id, 1, 20, static_cast<int32_t>(id) * 100));
  while (rig.tokens.size() < 9) ASSERT_TRUE(rig.Step());
  rig.scheduler->Add(Rig::MakeRequest(10, 100, 1, 5000));  // takes the eight rows that are left
  rig.scheduler->Add(Rig::MakeRequest(11, 80, 1));         // goes on from the first one's snapshot
  auto plan = rig.scheduler->Plan();
  rig.Events();
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->load_snapshots.size(), 1u);
  EXPECT_EQ(rig.cached[SequenceId(11, 0)], 32);
  ASSERT_EQ(rig.SpanOf(*plan, 11), nullptr);
  const int64_t free = rig.slots->free_slots();
  rig.scheduler->End(SequenceId(11, 0), Finish::kCancelled);
  EXPECT_EQ(rig.slots->free_slots(), free);
  rig.scheduler->Advance(rig.executor->Run(*plan, 0, 0));
  EXPECT_EQ(rig.slots->free_slots(), free + 1);
  rig.RunOut();
}

}  // namespace
}  // namespace senko::engine
