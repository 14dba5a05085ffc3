#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "engine/ghost_model.h"

namespace senko::engine {
namespace {

constexpr int32_t kVocab = 1 << 20;  // draws practically never meet a stop token by chance

struct Rig {
  ghost::Shape shape;
  config::ModelConfig config;
  std::optional<cache::PagePool> pages;
  std::optional<cache::SlotPool> slots;
  std::optional<cache::SnapshotStore> snapshots;
  std::optional<ghost::Executor> executor;
  std::optional<Scheduler> scheduler;
  std::map<uint64_t, std::vector<int32_t>> tokens;
  std::map<uint64_t, Finish> finished;
  std::map<uint64_t, int64_t> cached;
  std::vector<StepPlan> plans;  // all that ran

  explicit Rig(SchedulerOptions options = {}, int64_t window = 32, int64_t block = 16, int64_t num_pages = 64,
               int64_t num_slots = 4, int64_t num_snapshots = 0) {
    shape.window = window;
    shape.block_size = block;
    shape.ring_rows = window + options.verify_rows;
    shape.pending_rows = 1 + options.verify_rows / 2;
    config.window = window;
    config.max_positions = 1 << 20;
    config.num_layers = ghost::kLayers;
    config.kv_sources = {0, ghost::kSeam};
    config.engram.max_ngram = 4;
    if (options.max_model_len == 0) options.max_model_len = num_pages * block;
    pages.emplace(ghost::PageLayoutOf(shape), num_pages);
    slots.emplace(ghost::SlotLayoutOf(shape), num_slots);
    snapshots.emplace(ghost::SlotLayoutOf(shape), num_snapshots * ghost::SlotLayoutOf(shape).slot_bytes);
    executor.emplace(shape, *pages, *slots, *snapshots, kVocab);
    scheduler.emplace(config, options, *pages, *slots, *snapshots);
  }

  static Request MakeRequest(uint64_t id, int64_t prompt, int64_t max_tokens, int32_t first = 0) {
    Request request;
    request.id = id;
    for (int64_t i = 0; i < prompt; ++i) request.prompt.ids.push_back(first + static_cast<int32_t>(i));
    request.max_tokens = max_tokens;
    return request;
  }
  void Events() {
    for (const Event& event : scheduler->TakeEvents()) {
      if (event.kind == Event::Kind::kToken) tokens[event.sequence].push_back(event.token);
      if (event.kind == Event::Kind::kFinished) finished[event.sequence] = event.finish;
      if (event.kind == Event::Kind::kScheduled && !event.resumed) cached[event.sequence] = event.cached_tokens;
    }
  }
  // One step from plan to advance. False: there was nothing to plan.
  bool Step(const std::function<void(StepResult&)>& change = {}) {
    auto plan = scheduler->Plan();
    Events();
    if (!plan) return false;
    StepResult result = executor->Run(*plan, 0, 0);
    if (change) change(result);
    plans.push_back(std::move(*plan));
    scheduler->Advance(result);
    Events();
    return true;
  }
  void RunOut() {
    while (Step()) {
    }
    EXPECT_TRUE(scheduler->idle());
    EXPECT_EQ(pages->free_pages(), pages->num_pages());
    EXPECT_EQ(slots->free_slots(), slots->num_slots());
  }
  void Complete(Request request) {
    scheduler->Add(std::move(request));
    RunOut();
  }
  const PlannedSpan* SpanOf(const StepPlan& plan, uint64_t request, int64_t choice = 0) const {
    for (const PlannedSpan& span : plan.spans) {
      if (span.sequence == SequenceId(request, choice)) return &span;
    }
    return nullptr;
  }
};

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
  rig.Step([](StepResult& r) { r.tokens[0] = -1; });
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
  rig.Step([](StepResult& r) { r.tokens[0] = -1; });
  rig.RunOut();
  EXPECT_EQ(rig.finished[SequenceId(2, 0)], Finish::kNumerical);
  EXPECT_EQ(rig.cached[SequenceId(2, 0)], 32);
  rig.Complete(Rig::MakeRequest(3, 100, 2));
  EXPECT_EQ(rig.cached[SequenceId(3, 0)], 32);
  EXPECT_EQ(rig.tokens[SequenceId(3, 0)].size(), 2u);
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
      if (running.front().samples[i].sequence == SequenceId(2, 0)) result.tokens[i] = -1;
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
    ASSERT_TRUE(rig.Step([](StepResult& r) { r.tokens[0] = -1; }));
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
