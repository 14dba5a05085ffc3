// Steps in which a decoding sequence has several rows: its last token and drafts to be verified. Whatever is drafted
// and taken back, each sequence draws what it draws with one row a step, in every bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/random.h"
#include "engine/scheduler.h"
#include "runtime/cpu_executor.h"
#include "runtime/host_step_runner.h"
#include "runtime/load.h"
#include "runtime/test_models.h"

namespace senko::runtime {
namespace {

constexpr int64_t kVerifyRows = 6, kBlock = 64, kRows = 160;

using Drawn = std::vector<TokenOutput>;

// A few requests through the scheduler and the runner; nobody but the test proposes drafts.
class Rig {
 public:
  Rig()
      : loaded_(Load()),
        pool_(2),
        pages_(loaded_.model->page_layout(), 48),
        slots_(loaded_.model->slot_layout(), 4),
        snapshots_(loaded_.model->slot_layout(), 0),
        executor_(*loaded_.model, pages_, pool_, model::WorkspaceLimits{kRows, 4}),
        runner_(executor_, slots_, snapshots_, pool_, 4 * kVerifyRows),
        scheduler_(loaded_.config, Options(), pages_, slots_, snapshots_) {}

  uint64_t Add(std::vector<int32_t> prompt, int64_t max_tokens) {
    const uint64_t id = next_++;
    auto request = std::make_shared<GenerationRequest>();
    request->sampling.seed = id;
    request->sampling.logprobs = kMaxLogprobs;
    request->sampling.frequency_penalty = 0.5f;  // a draw looks back at all before it, drafts too
    request->sampling.max_tokens = max_tokens;
    request->prompt = prompt;
    engine::Request asked;
    asked.id = id;
    asked.prompt.ids = std::move(prompt);
    asked.max_tokens = max_tokens;
    scheduler_.Add(asked);
    runner_.Begin(engine::SequenceId(id, 0), std::move(request));
    return id;
  }

  // drafts(request, drawn so far): what to verify behind that. on_step(plan, result) sees each step.
  template <typename Drafts, typename OnStep>
  void Run(Drafts drafts, OnStep on_step) {
    while (!scheduler_.idle()) {
      const auto plan = scheduler_.Plan();
      ASSERT_TRUE(plan);
      runner_.Launch(*plan);
      StepOutput output = runner_.Collect();
      size_t verified = 0, sample = 0;
      output.result.drafts.resize(plan->spans.size());
      for (size_t i = 0; i < plan->spans.size(); ++i) {
        const engine::PlannedSpan& span = plan->spans[i];
        const uint64_t id = engine::RequestOf(span.sequence);
        if (sample == plan->samples.size() || plan->samples[sample].span != static_cast<int64_t>(i)) continue;
        const int32_t committed = span.drafts > 0 ? output.result.committed.at(verified++) : 1;
        for (int32_t k = 0; k < committed; ++k) {
          drawn[id].push_back(output.draws[sample + static_cast<size_t>(k)].output);
        }
        sample += static_cast<size_t>(span.drafts) + 1;
        output.result.drafts[i] = drafts(id, drawn[id].size());
      }
      ASSERT_EQ(verified, output.result.committed.size());
      on_step(*plan, output.result);
      scheduler_.Advance(output.result);
      scheduler_.TakeEvents();
    }
  }

  int64_t vocab() const { return loaded_.config.vocab_size; }
  int64_t pages_in_use() const { return pages_.num_pages() - pages_.free_pages(); }
  uint64_t prefix_hits() const { return scheduler_.stats().prefix_hits; }

  std::map<uint64_t, Drawn> drawn;

 private:
  static LoadedModel Load() {
    LoadOptions load;
    load.directory = TestModelWithWindow("engram_first", 8);
    load.block_size = kBlock;
    load.verify_rows = kVerifyRows;
    return LoadModel(load);
  }
  static engine::SchedulerOptions Options() {
    engine::SchedulerOptions options;
    options.max_model_len = 400;
    options.max_rows = kRows;
    options.long_prefill_token_threshold = 128;
    options.verify_rows = kVerifyRows;
    options.steps_in_flight = 1;
    return options;
  }

  LoadedModel loaded_;
  ThreadPool pool_;
  cache::PagePool pages_;
  cache::SlotPool slots_;
  cache::SnapshotStore snapshots_;
  CpuExecutor executor_;
  HostStepRunner runner_;
  engine::Scheduler scheduler_;
  uint64_t next_ = 1;
};

std::vector<int32_t> Words(int64_t count, uint64_t seed, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
    ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(vocab - 1)));
  }
  return ids;
}

// The first decodes with one row a step, the second and third with up to six across a page's end; the fourth is a
// prompt that comes while they do, and the fifth a hit on it. Same ids in every rig.
template <typename Drafts, typename OnStep>
void RunAll(Rig* rig, Drafts drafts, OnStep on_step) {
  const int64_t vocab = rig->vocab();
  rig->Add(Words(9, 1, vocab), 60);
  rig->Add(Words(59, 2, vocab), 60);
  rig->Add(Words(126, 3, vocab), 60);
  int64_t steps = 0;
  rig->Run(drafts, [&](const engine::StepPlan& plan, const engine::StepResult& result) {
    if (++steps == 6) rig->Add(Words(300, 4, vocab), 20);
    on_step(plan, result);
  });
  std::vector<int32_t> hit = Words(300, 4, vocab);
  hit.resize(192 + 3);
  rig->Add(std::move(hit), 30);
  rig->Run(drafts, on_step);
}

TEST(VerifyRows, DraftsAndRollbacksChangeNoBit) {
  const auto nothing = [](uint64_t, size_t) { return std::vector<int32_t>(); };
  Rig singly;
  RunAll(&singly, nothing, [](const engine::StepPlan& plan, const engine::StepResult&) {
    for (const engine::PlannedSpan& span : plan.spans) EXPECT_EQ(span.drafts, 0);
  });
  ASSERT_EQ(singly.drawn.size(), 5u);
  EXPECT_EQ(singly.prefix_hits(), 192u);

  std::mt19937 random(11);
  // Five drafts of which 0 .. 5 are what will be drawn.
  const auto drafts = [&](uint64_t id, size_t known) {
    std::vector<int32_t> proposed;
    if (id == 1) return proposed;
    const Drawn& truth = singly.drawn.at(id);
    const size_t right = random() % kVerifyRows;
    for (size_t k = 0; k + 1 < kVerifyRows && known + k < truth.size(); ++k) {
      const int32_t token = truth[known + k].token;
      proposed.push_back(k < right ? token : (token + 1) % static_cast<int32_t>(singly.vocab()));
    }
    return proposed;
  };
  Rig verified;
  std::map<int32_t, int> committed;  // of spans with six rows
  bool mixed = false;
  RunAll(&verified, drafts, [&](const engine::StepPlan& plan, const engine::StepResult& result) {
    std::set<int64_t> rows;
    size_t next = 0;
    for (const engine::PlannedSpan& span : plan.spans) {
      rows.insert(span.rows());
      if (span.drafts == 0) continue;
      const int32_t count = result.committed.at(next++);
      if (span.drafts == kVerifyRows - 1) ++committed[count];
    }
    mixed = mixed || (rows.contains(1) && rows.contains(kVerifyRows) && rows.contains(128));
  });
  EXPECT_TRUE(mixed) << "no step had spans of 1, 6 and 128 rows";
  for (int32_t count = 1; count <= kVerifyRows; ++count) EXPECT_GT(committed[count], 0) << count;

  for (const auto& [id, expected] : singly.drawn) {
    const Drawn& got = verified.drawn[id];
    ASSERT_EQ(got.size(), expected.size()) << id;
    for (size_t t = 0; t < expected.size(); ++t) {
      ASSERT_EQ(got[t].token, expected[t].token) << id << " " << t;
      ASSERT_EQ(got[t].logprob->logprob, expected[t].logprob->logprob) << id << " " << t;
      ASSERT_EQ(got[t].top.size(), size_t{kMaxLogprobs});
      for (size_t i = 0; i < got[t].top.size(); ++i) {
        ASSERT_EQ(got[t].top[i].token, expected[t].top[i].token) << id << " " << t << " " << i;
        ASSERT_EQ(got[t].top[i].logprob, expected[t].top[i].logprob) << id << " " << t << " " << i;
      }
    }
  }
  EXPECT_EQ(verified.pages_in_use(), 0);
}

}  // namespace
}  // namespace senko::runtime
