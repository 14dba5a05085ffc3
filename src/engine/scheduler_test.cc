#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "engine/scheduler_rig.h"

namespace senko::engine {
namespace {

// The published cases of a hit (block 16, window 32, prompt 100).
TEST(Scheduler, AHitReplaysTheWindowAndAdoptsWholePages) {
  Rig rig;
  rig.Complete(Rig::MakeRequest(1, 100, 1));
  rig.plans.clear();
  rig.scheduler->Add(Rig::MakeRequest(2, 100, 1));
  ASSERT_TRUE(rig.Step());
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 96);
  const PlannedSpan& span = *rig.SpanOf(rig.plans[0], 2);
  EXPECT_EQ(span.begin, 64);
  EXPECT_EQ(span.end, 100);
  EXPECT_EQ(span.replay_start, 64);
  EXPECT_EQ(span.write_floor, 96);
  EXPECT_EQ(span.keep_begin, 68);
  EXPECT_EQ(span.tail_start, 68);
  EXPECT_EQ(span.num_pages, 7);
  EXPECT_EQ(span.ids_begin, 61);  // the Engram looks three ids back
  EXPECT_EQ(rig.scheduler->stats().replayed_rows, 32u);
  rig.RunOut();
  EXPECT_EQ(rig.tokens[SequenceId(1, 0)].size(), 1u);
}

TEST(Scheduler, ChunksInsideTheReplayKeepItsStart) {
  SchedulerOptions options;
  options.max_rows = 16;
  Rig rig(options);
  rig.Complete(Rig::MakeRequest(1, 100, 1));
  rig.plans.clear();
  rig.Complete(Rig::MakeRequest(2, 100, 1));
  std::vector<std::pair<int64_t, int64_t>> chunks;
  for (const StepPlan& plan : rig.plans) {
    if (const PlannedSpan* span = rig.SpanOf(plan, 2)) {
      chunks.push_back({span->begin, span->end});
      EXPECT_EQ(span->replay_start, 64);
      EXPECT_EQ(span->write_floor, 96);
    }
  }
  EXPECT_EQ(chunks, (std::vector<std::pair<int64_t, int64_t>>{{64, 80}, {80, 96}, {96, 100}}));
}

// Every prompt length against every cached length: the hit is the largest multiple of the page at most P - 1, unless it
// is not above the window; at least one row is new; exactly `window` rows run again.
TEST(Scheduler, EveryHitLength) {
  for (int64_t cached : {15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 80, 96}) {
    for (int64_t prompt : {1, 16, 17, 32, 33, 48, 49, 63, 64, 65, 80, 81, 96, 97, 100}) {
      Rig rig;
      rig.Complete(Rig::MakeRequest(1, cached, 1));
      const SchedulerStats before = rig.scheduler->stats();
      rig.plans.clear();
      rig.Complete(Rig::MakeRequest(2, prompt, 1));
      int64_t hit = std::min(cached, prompt - 1) / 16 * 16;
      if (hit <= 32) hit = 0;
      EXPECT_EQ(rig.cached[SequenceId(2, 0)], hit) << cached << " " << prompt;
      const SchedulerStats& after = rig.scheduler->stats();
      EXPECT_EQ(after.replayed_rows - before.replayed_rows, hit > 0 ? 32u : 0u);
      EXPECT_EQ(after.encoder_rows - before.encoder_rows, static_cast<uint64_t>(prompt - (hit > 0 ? hit - 32 : 0)));
      EXPECT_EQ(after.decoder_rows - before.decoder_rows, static_cast<uint64_t>(std::min<int64_t>(prompt, 32)));
    }
  }
}

TEST(Scheduler, TheRowsThatRunTheDecoderPassDoNotDependOnTheCut) {
  for (int64_t rows : {4, 7, 31, 32, 33, 100}) {
    SchedulerOptions options;
    options.max_rows = rows;
    Rig rig(options);
    rig.Complete(Rig::MakeRequest(1, 100, 3));
    EXPECT_EQ(rig.scheduler->stats().decoder_rows, 32u + 2u) << rows;
    EXPECT_EQ(rig.scheduler->stats().encoder_rows, 100u + 2u) << rows;
  }
}

TEST(Scheduler, SaltsAndPromptLogitsKeepToThemselves) {
  Rig rig;
  rig.Complete(Rig::MakeRequest(1, 100, 1));
  Request salted = Rig::MakeRequest(2, 100, 1);
  salted.cache_salt = "a";
  rig.Complete(salted);
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 0);
  salted.id = 3;
  rig.Complete(salted);
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 96);
  Request scored = Rig::MakeRequest(4, 100, 1);
  scored.prompt_logits = true;
  rig.plans.clear();
  rig.Complete(scored);
  EXPECT_EQ(rig.cached[SequenceId(4, 0)], 0);
  EXPECT_EQ(rig.SpanOf(rig.plans[0], 4)->kept_rows(), 100);
  EXPECT_TRUE(rig.SpanOf(rig.plans[0], 4)->prompt_logits);
}

TEST(Scheduler, GeneratedTokensAreFoundByTheNextTurn) {
  Rig rig;
  rig.Complete(Rig::MakeRequest(1, 50, 60));
  Request next = Rig::MakeRequest(2, 50, 1);
  for (int32_t token : rig.tokens[SequenceId(1, 0)]) next.prompt.ids.push_back(token);
  for (int i = 0; i < 10; ++i) next.prompt.ids.push_back(7);
  rig.Complete(next);
  // 109 of the 110 tokens were computed: the last one was drawn and never fed.
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 96);
}

TEST(Scheduler, ALongPromptDoesNotHoldUpDecodes) {
  SchedulerOptions options;
  options.max_rows = 32;
  Rig rig(options);
  rig.scheduler->Add(Rig::MakeRequest(1, 4, 40));
  rig.Step();
  rig.scheduler->Add(Rig::MakeRequest(2, 900, 1, 5000));
  for (int n = 0; n < 25; ++n) {
    ASSERT_TRUE(rig.Step());
    ASSERT_NE(rig.SpanOf(rig.plans.back(), 1), nullptr) << "step " << n;
    ASSERT_NE(rig.SpanOf(rig.plans.back(), 2), nullptr) << "step " << n;
  }
  rig.RunOut();
}

TEST(Scheduler, ShortPromptsPassLongOnesAndBothMoveOn) {
  SchedulerOptions options;
  options.max_rows = 32;
  Rig rig(options, 32, 16, 256, 8);
  for (uint64_t id = 1; id <= 3; ++id)
    rig.scheduler->Add(Rig::MakeRequest(id, 600, 1, static_cast<int32_t>(id) * 10000));
  for (int n = 0; n < 4; ++n) rig.Step();
  rig.scheduler->Add(Rig::MakeRequest(9, 10, 1, 90000));
  rig.Step();
  EXPECT_TRUE(rig.finished.contains(SequenceId(9, 0)));
  // A stream of short prompts takes at most half of the steps from the first long one.
  uint64_t id = 100;
  int steps = 0;
  while (!rig.finished.contains(SequenceId(1, 0))) {
    ASSERT_LT(++steps, 45);
    rig.scheduler->Add(Rig::MakeRequest(id, 16, 1, static_cast<int32_t>(id) * 1000));
    ++id;
    ASSERT_TRUE(rig.Step());
  }
  rig.RunOut();
}

TEST(Scheduler, TheUsersThresholdIsAHardCap) {
  SchedulerOptions options;
  options.max_rows = 64;
  options.long_prefill_token_threshold = 8;
  Rig rig(options);
  rig.scheduler->Add(Rig::MakeRequest(1, 40, 1));
  rig.Step();
  EXPECT_EQ(rig.plans.back().rows(), 8);
  rig.RunOut();
}

TEST(Scheduler, PreemptsTheLastComerAndEverybodyFinishes) {
  SchedulerOptions options;
  options.max_model_len = 160;
  Rig rig(options, 8, 16, 12, 4);
  for (uint64_t id = 1; id <= 3; ++id)
    rig.scheduler->Add(Rig::MakeRequest(id, 40, 100, static_cast<int32_t>(id) * 1000));
  std::map<uint64_t, int64_t> ends;
  while (rig.Step()) {
    const PlannedSpan* first = rig.SpanOf(rig.plans.back(), 1);
    if (first == nullptr) continue;
    ASSERT_GE(first->begin, ends[1]) << "the first in order was sent back";
    ends[1] = first->end;
  }
  EXPECT_GT(rig.scheduler->stats().preemptions, 0u);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(rig.tokens[SequenceId(id, 0)].size(), 100u);
  rig.RunOut();
}

// A prompt that is only scored leaves no place for an answer; the one token that is drawn needs none. 33: the last
// chunk has one row, as a decode.
TEST(Scheduler, APromptMayTakeEveryPosition) {
  for (const int64_t length : {32, 33, 48}) {
    for (const int64_t max_tokens : {1, 5}) {
      SchedulerOptions options;
      options.max_model_len = length;
      options.max_rows = 16;
      Rig rig(options, 8, 16, (length + 15) / 16, 4);
      rig.Complete(Rig::MakeRequest(1, length, max_tokens));
      EXPECT_EQ(rig.tokens[SequenceId(1, 0)].size(), 1u);
      EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kLength);
    }
  }
}

TEST(Scheduler, PriorityComesBeforeArrival) {
  Rig rig({}, 32, 16, 64, 1);
  rig.scheduler->Add(Rig::MakeRequest(1, 10, 1));
  Request urgent = Rig::MakeRequest(2, 10, 1, 500);
  urgent.priority = -1;
  rig.scheduler->Add(urgent);
  rig.Step();
  EXPECT_EQ(rig.SpanOf(rig.plans.back(), 1), nullptr);
  EXPECT_NE(rig.SpanOf(rig.plans.back(), 2), nullptr);
  rig.RunOut();
}

TEST(Scheduler, ChoicesShareThePromptsPages) {
  Rig rig;
  Request request = Rig::MakeRequest(1, 40, 20);
  request.choices = 3;
  rig.scheduler->Add(request);
  ASSERT_TRUE(rig.Step());
  EXPECT_EQ(rig.plans[0].samples.size(), 3u);
  EXPECT_EQ(rig.plans[0].copy_slots.size(), 2u);
  EXPECT_EQ(rig.plans[0].copy_pages.size(), 2u);
  EXPECT_EQ(rig.pages->num_pages() - rig.pages->free_pages(), 2 + 3);  // two whole ones shared, a partial one each
  rig.RunOut();
  std::set<std::vector<int32_t>> texts;
  for (int64_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(rig.tokens[SequenceId(1, choice)].size(), 20u);
    texts.insert(rig.tokens[SequenceId(1, choice)]);
  }
  EXPECT_EQ(texts.size(), 3u);
}

TEST(Scheduler, ChoicesWithoutASlotComeLater) {
  Rig rig({}, 32, 16, 64, 2);
  Request request = Rig::MakeRequest(1, 40, 5);
  request.choices = 4;
  rig.Complete(request);
  for (int64_t choice = 0; choice < 4; ++choice) EXPECT_EQ(rig.tokens[SequenceId(1, choice)].size(), 5u);
}

// Also where later choices find the prompt's pages in the cache.
TEST(Scheduler, APromptCountsOnceForAllChoices) {
  Rig rig({}, 32, 16, 64, 2);
  for (uint64_t id = 1; id <= 2; ++id) {
    Request request = Rig::MakeRequest(id, 100, 5);
    request.choices = 6;
    rig.Complete(request);
    const SchedulerStats& stats = rig.scheduler->stats();
    EXPECT_EQ(stats.prompt_tokens, 100 * id);
    EXPECT_EQ(stats.prefix_queries, 100 * id);
    EXPECT_EQ(stats.prefix_hits, id == 1 ? 0 : static_cast<uint64_t>(rig.cached[SequenceId(2, 0)]));
  }
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 96);
}

TEST(Scheduler, ALateStopDiscardsWhatRanAheadAndThenGivesBack) {
  Rig rig;
  Request request = Rig::MakeRequest(1, 20, 50);
  request.stop_tokens = {3};
  rig.scheduler->Add(request);
  auto first = rig.scheduler->Plan();
  auto second = rig.scheduler->Plan();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(rig.scheduler->Plan()) << "two steps are in flight";
  EXPECT_EQ(second->spans[0].begin, 20);
  EXPECT_LT(second->ids[static_cast<size_t>(second->spans[0].first_id + 3)], 0) << "fed from the step before";
  StepResult result = rig.executor->Run(*first, 0, 0);
  const StepResult ahead = rig.executor->Run(*second, 0, 0);
  result.tokens[0] = 3;
  rig.scheduler->Advance(result);
  rig.Events();
  EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kStop);
  EXPECT_LT(rig.pages->free_pages(), rig.pages->num_pages()) << "the running step may still touch them";
  rig.scheduler->Advance(ahead);
  rig.Events();
  EXPECT_EQ(rig.tokens[SequenceId(1, 0)], std::vector<int32_t>{3});
  EXPECT_EQ(rig.scheduler->stats().discarded_tokens, 1u);
  rig.RunOut();
}

TEST(Scheduler, MinTokensAndLengthEndWhereTheySay) {
  Rig rig;
  Request request = Rig::MakeRequest(1, 20, 6);
  request.stop_tokens = {3};
  request.min_tokens = 3;
  rig.scheduler->Add(request);
  for (int n = 0; n < 3; ++n) rig.Step([](StepResult& r) { r.tokens[0] = 3; });
  EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kStop);
  EXPECT_EQ(rig.tokens[SequenceId(1, 0)].size(), 3u);
  rig.RunOut();
  rig.Complete(Rig::MakeRequest(2, 20, 6));
  EXPECT_EQ(rig.finished[SequenceId(2, 0)], Finish::kLength);
  EXPECT_EQ(rig.tokens[SequenceId(2, 0)].size(), 6u);
}

TEST(Scheduler, TheModelsLengthIsNeverPassed) {
  SchedulerOptions options;
  options.max_model_len = 64;
  Rig rig(options, 8, 16, 4, 2);
  rig.Complete(Rig::MakeRequest(1, 63, 100));
  EXPECT_EQ(rig.tokens[SequenceId(1, 0)].size(), 1u);
  EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kLength);
  rig.Complete(Rig::MakeRequest(2, 10, 100));
  EXPECT_EQ(rig.tokens[SequenceId(2, 0)].size(), 54u);
}

TEST(Scheduler, ARowThatIsNotFiniteEndsItsSequenceOnly) {
  Rig rig;
  rig.scheduler->Add(Rig::MakeRequest(1, 20, 6));
  rig.scheduler->Add(Rig::MakeRequest(2, 20, 6, 500));
  rig.Step([](StepResult& r) { r.tokens[0] = kNotFinite; });
  rig.RunOut();
  EXPECT_EQ(rig.finished[SequenceId(1, 0)], Finish::kNumerical);
  EXPECT_TRUE(rig.tokens[SequenceId(1, 0)].empty());
  EXPECT_EQ(rig.tokens[SequenceId(2, 0)].size(), 6u);
}

TEST(Scheduler, EndsAtAnyPointGiveEverythingBack) {
  for (int steps = 0; steps < 12; ++steps) {
    SchedulerOptions options;
    options.max_rows = 8;
    Rig rig(options);
    Request request = Rig::MakeRequest(1, 40, 20);
    request.choices = 2;
    rig.scheduler->Add(request);
    for (int n = 0; n < steps; ++n) rig.Step();
    auto running = rig.scheduler->Plan();
    rig.scheduler->EndRequest(1, Finish::kCancelled);
    rig.scheduler->EndRequest(1, Finish::kCancelled);
    rig.scheduler->EndRequest(77, Finish::kCancelled);
    rig.Events();
    EXPECT_EQ(rig.finished.size(), 2u);
    if (running) rig.scheduler->Advance(rig.executor->Run(*running, 0, 0));
    rig.Events();
    rig.RunOut();
  }
}

TEST(Scheduler, RejectedDraftsLeaveNothing) {
  SchedulerOptions options;
  options.verify_rows = 4;
  Rig rig(options, 8, 4);
  rig.scheduler->Add(Rig::MakeRequest(1, 21, 30));
  rig.Step([](StepResult& r) { r.drafts[0] = {1, 2, 3}; });
  auto plan = rig.scheduler->Plan();
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->spans[0].drafts, 3);
  EXPECT_EQ(plan->spans[0].rows(), 4);
  EXPECT_EQ(plan->samples.size(), 4u);
  EXPECT_FALSE(rig.scheduler->Plan()) << "what follows the drafts is not known";
  const StepResult result = rig.executor->Run(*plan, 0, 0);
  EXPECT_EQ(result.committed, std::vector<int32_t>{1});
  rig.scheduler->Advance(result);
  rig.Events();
  EXPECT_EQ(rig.scheduler->Find(SequenceId(1, 0))->known(), 23);
  EXPECT_EQ(rig.scheduler->Find(SequenceId(1, 0))->computed, 22);
  EXPECT_EQ(rig.pages->num_pages() - rig.pages->free_pages(), 6);
  rig.RunOut();
  Rig plain({}, 8, 4);
  plain.Complete(Rig::MakeRequest(1, 21, 30));
  EXPECT_EQ(rig.tokens, plain.tokens);
}

// However many long prompts wait before it, a short one runs.
TEST(Scheduler, AShortPromptIsSeenBehindAnyNumberOfLongOnes) {
  SchedulerOptions options;
  options.max_rows = 8;
  Rig rig(options, 32, 16, 4096, 8);
  for (uint64_t id = 1; id <= 200; ++id)
    rig.scheduler->Add(Rig::MakeRequest(id, 300, 2, static_cast<int32_t>(id) * 1000));
  for (int n = 0; n < 10; ++n) rig.Step();
  rig.scheduler->Add(Rig::MakeRequest(999, 3, 1, 900000));
  for (int n = 0; n < 5; ++n) rig.Step();
  EXPECT_EQ(rig.finished.count(SequenceId(999, 0)), 1u);
}

TEST(Scheduler, RefusesWhatItCannotRun) {
  Rig rig;
  EXPECT_THROW(rig.scheduler->Add(Rig::MakeRequest(1, 0, 1)), Error);
  EXPECT_THROW(rig.scheduler->Add(Rig::MakeRequest(1, 64 * 16 + 1, 1)), Error);
  EXPECT_THROW(rig.scheduler->Add(Rig::MakeRequest(1, 5, 0)), Error);
  Request many = Rig::MakeRequest(1, 5, 1);
  many.choices = 256;
  EXPECT_THROW(rig.scheduler->Add(many), Error);
  rig.scheduler->Add(Rig::MakeRequest(1, 5, 1));
  EXPECT_THROW(rig.scheduler->Add(Rig::MakeRequest(1, 5, 1)), Error);
  rig.RunOut();
  SchedulerOptions small;
  small.max_rows = 3;
  EXPECT_THROW(Rig(small, 8, 16, 64, 4), Error);
  SchedulerOptions large;
  large.max_model_len = 64 * 16 + 1;
  EXPECT_THROW(Rig(large, 8, 16, 64, 4), Error);
}

}  // namespace
}  // namespace senko::engine
