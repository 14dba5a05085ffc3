// The engine's threads with a runner that lets two steps be launched before the first is collected, and that fails when
// it is told to: on the CPU, with a stand-in for a GPU's runner.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/engine_core.h"
#include "runtime/engine_test_client.h"

namespace senko::runtime {
namespace {

struct Script {
  std::atomic<uint64_t> fail_launch{0}, fail_collect{0}, lose_device{0};  // steps; 0: none
  std::atomic<size_t> most_in_flight{0};
};

// Runs a step when it is launched, and gives its output away later. Ready says so only when asked a few times.
class AheadRunner final : public StepRunner {
 public:
  AheadRunner(std::unique_ptr<StepRunner> inner, Script& script) : inner_(std::move(inner)), script_(script) {}
  void Begin(uint64_t sequence, std::shared_ptr<const GenerationRequest> request) override {
    inner_->Begin(sequence, std::move(request));
  }
  void Launch(const engine::StepPlan& plan) override {
    ASSERT_LT(steps_.size(), most_launched());
    if (plan.step == script_.fail_launch) throw std::runtime_error("launch " + std::to_string(plan.step));
    inner_->Launch(plan);
    steps_.push_back({plan.step, inner_->Collect()});
    script_.most_in_flight = std::max(script_.most_in_flight.load(), steps_.size());
    asked_ = 0;
  }
  size_t most_launched() const override { return 2; }
  bool Ready() override { return ++asked_ > 3; }
  StepOutput Collect() override {
    auto [step, output] = std::move(steps_.front());
    steps_.pop_front();
    if (step == script_.lose_device) throw DeviceLost("the device is lost");
    if (step == script_.fail_collect) throw std::runtime_error("collect " + std::to_string(step));
    return std::move(output);
  }
  StepOutput Abandon(const engine::StepPlan& plan) override {
    if (plan.step == script_.fail_launch) {
      EXPECT_TRUE(steps_.empty()) << "steps launched before it have not been collected";
    }
    return inner_->Abandon(plan);
  }
  int64_t bytes() const override { return inner_->bytes(); }

 private:
  std::unique_ptr<StepRunner> inner_;
  Script& script_;
  std::deque<std::pair<uint64_t, StepOutput>> steps_;
  int asked_ = 0;
};

class AheadBackend final : public Backend {
 public:
  AheadBackend(std::unique_ptr<Backend> inner, Script& script) : inner_(std::move(inner)), script_(script) {}
  cache::Memory& memory() override { return inner_->memory(); }
  int64_t DefaultCacheBytes(const ExecutorLimits& limits) const override { return inner_->DefaultCacheBytes(limits); }
  void CheckCacheBytes(const ExecutorLimits& limits, int64_t bytes) const override {
    inner_->CheckCacheBytes(limits, bytes);
  }
  std::string Describe(const ExecutorLimits& limits) const override { return inner_->Describe(limits); }
  std::unique_ptr<Executor> MakeExecutor(cache::PagePool& pages, const ExecutorLimits& limits) override {
    return inner_->MakeExecutor(pages, limits);
  }
  std::unique_ptr<StepRunner> MakeRunner(Executor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots,
                                         ThreadPool& pool, int64_t max_drawn_rows) override {
    return std::make_unique<AheadRunner>(inner_->MakeRunner(executor, slots, snapshots, pool, max_drawn_rows), script_);
  }

 private:
  std::unique_ptr<Backend> inner_;
  Script& script_;
};

std::unique_ptr<Engine> LoadAhead(const EngineOptions& options, Script& script) {
  LoadOptions load;
  load.directory = options.model;
  load.block_size = options.block_size;
  LoadedModel loaded = LoadModel(load);
  auto pool = std::make_unique<ThreadPool>(options.threads);
  auto backend = std::make_unique<AheadBackend>(MakeBackend({}, *loaded.model, *pool, {}), script);
  MemoryRequest memory;
  memory.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  memory.max_num_seqs = options.max_num_seqs;
  memory.max_positions = loaded.config.max_positions;
  const MemoryPlan plan = PlanMemory(loaded.model->page_layout(), loaded.model->slot_layout(), memory);
  return std::make_unique<EngineCore>(options, std::move(loaded), std::move(pool), std::move(backend), plan);
}

EngineOptions Options(int64_t sequences) {
  EngineOptions options = TestEngineOptions("mini10");
  options.enable_prefix_caching = false;
  options.max_num_seqs = sequences;
  return options;
}

std::vector<GenerationRequest> Requests(const EngineLimits& limits) {
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    requests.push_back(Ask(15 * static_cast<int64_t>(seed), seed, 12, limits));
    if (seed % 2 == 0) requests.back().sampling.repetition_penalty = 1.4f;
  }
  return requests;
}

TEST(EngineAhead, StepsLaunchedAheadChangeNothing) {
  const auto plain = LoadEngine(Options(4));
  Script script;
  const auto ahead = LoadAhead(Options(4), script);
  std::vector<std::shared_ptr<Collector>> expected, got;
  for (const GenerationRequest& request : Requests(plain->limits())) {
    expected.push_back(Submit(*plain, request));
    got.push_back(Submit(*ahead, request));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    expected[i]->Wait();
    got[i]->Wait();
    EXPECT_EQ(got[i]->finish[0], FinishReason::kLength) << got[i]->error;
    EXPECT_EQ(got[i]->Ids(), expected[i]->Ids());
  }
  EXPECT_EQ(script.most_in_flight, 2u);
}

// Whoever is in the step ends, saying why, and nobody else: two of six requests, with two slots.
TEST(EngineAhead, AFailedStepEndsItsOwnSequences) {
  const auto plain = LoadEngine(Options(2));
  for (const bool launch : {true, false}) {
    Script script;
    (launch ? script.fail_launch : script.fail_collect) = 6;
    const auto ahead = LoadAhead(Options(2), script);
    std::vector<std::shared_ptr<Collector>> sinks;
    const std::vector<GenerationRequest> requests = Requests(plain->limits());
    for (const GenerationRequest& request : requests) sinks.push_back(Submit(*ahead, request));
    int failed = 0;
    for (size_t i = 0; i < sinks.size(); ++i) {
      sinks[i]->Wait();
      if (sinks[i]->finish[0] == FinishReason::kError) {
        EXPECT_EQ(sinks[i]->error, launch ? "launch 6" : "collect 6");
        ++failed;
        continue;
      }
      EXPECT_EQ(sinks[i]->finish[0], FinishReason::kLength);
      const auto expected = Submit(*plain, requests[i]);
      expected->Wait();
      EXPECT_EQ(sinks[i]->Ids(), expected->Ids());
    }
    EXPECT_GE(failed, 1);
    EXPECT_LE(failed, 2);
    ahead->Shutdown();
    EXPECT_EQ(ahead->stats().slots_in_use, 0);
    EXPECT_EQ(ahead->stats().pages_in_use, 0);
  }
}

void LoseTheDevice() {
  Script script;
  script.lose_device = 3;
  const auto engine = LoadAhead(Options(2), script);
  Submit(*engine, Ask(10, 1, 20, engine->limits()))->Wait();
}

// Nothing could be computed any more: the process ends, saying so, and whoever watches it starts it again.
TEST(EngineAheadDeathTest, ALostDeviceIsTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(LoseTheDevice(), testing::ExitedWithCode(1), "the device is lost");
}

}  // namespace
}  // namespace senko::runtime
