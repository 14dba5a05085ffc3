// Plans run by the GPU's runner, step by step: its draws are the CPU's on the same logits, and a step that does not end
// fails alone.
#include "runtime/cuda/cuda_step_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "cuda/test_device.h"
#include "engine/scheduler.h"
#include "runtime/cuda/random_requests.h"
#include "runtime/load.h"

namespace senko::runtime {
namespace {

constexpr int64_t kSlots = 6;

// A model on the GPU, a scheduler, and a runner of either kind.
class Rig {
 public:
  explicit Rig(const std::string& config, std::chrono::milliseconds patience = std::chrono::seconds(60))
      : loaded_(Load(config)),
        pool_(2),
        backend_(MakeBackend({"cuda", true, 0.9}, *loaded_.model, pool_, {})),
        pages_(loaded_.model->page_layout(), 60, backend_->memory()),
        slots_(loaded_.model->slot_layout(), kSlots, backend_->memory()),
        snapshots_(loaded_.model->slot_layout(), 0, backend_->memory()),
        executor_(backend_->MakeExecutor(pages_, {64, kSlots, 512, kSlots})),
        patience_(patience) {
    limits_.vocab_size = loaded_.config.vocab_size;
    limits_.image_token = -1;
    Use(false);
  }

  // Everything has ended before.
  void Use(bool host) {
    runner_ = nullptr;
    on_gpu_ = nullptr;
    if (host) {
      runner_ = std::make_unique<HostStepRunner>(*executor_, slots_, snapshots_, pool_, kSlots);
    } else {
      auto runner = std::make_unique<CudaStepRunner>(gpu(), slots_, snapshots_, pool_, kSlots, patience_);
      on_gpu_ = runner.get();
      runner_ = std::move(runner);
    }
    engine::SchedulerOptions options;
    options.max_model_len = 512;
    options.max_rows = 64;
    options.prefix_caching = false;
    scheduler_.emplace(loaded_.config, options, pages_, slots_, snapshots_);
    draws.clear();
    prompts.clear();
    errors.clear();
  }

  uint64_t Add(const GenerationRequest& from) {
    engine::Request request;
    request.id = next_++;
    request.prompt.ids = from.prompt;
    request.choices = from.n;
    request.max_tokens = from.sampling.max_tokens;
    request.min_tokens = from.sampling.min_tokens;
    request.stop_tokens = from.sampling.stop_token_ids;
    request.prompt_logits = from.sampling.prompt_logprobs >= 0;
    const auto shared = std::make_shared<const GenerationRequest>(from);
    for (int choice = 0; choice < from.n; ++choice) runner_->Begin(engine::SequenceId(request.id, choice), shared);
    scheduler_->Add(std::move(request));
    return next_ - 1;
  }

  // Plans and launches as much as may be, then takes the oldest step. False: there was nothing.
  bool Step() {
    while (launched_.size() < runner_->most_launched()) {
      auto plan = scheduler_->Plan();
      if (!plan) break;
      launched_.push_back(std::move(*plan));
      try {
        runner_->Launch(launched_.back());
      } catch (const std::exception& error) {
        errors.push_back(error.what());
        if (launched_.size() == 2) Take(true);
        Take(false);
      }
    }
    if (launched_.empty()) return false;
    Take(true);
    return true;
  }
  void RunOut() {
    while (Step()) {
    }
    EXPECT_TRUE(scheduler_->idle());
    EXPECT_EQ(pages_.free_pages(), pages_.num_pages());
  }

  CudaExecutor& gpu() { return dynamic_cast<CudaExecutor&>(*executor_); }
  CudaStepRunner& on_gpu() { return *on_gpu_; }
  const EngineLimits& limits() const { return limits_; }

  std::map<uint64_t, std::vector<SampleDraw>> draws;  // by sequence, failures too
  std::map<uint64_t, std::vector<TokenOutput>> prompts;
  std::vector<std::string> errors;

 private:
  static LoadedModel Load(const std::string& config) {
    LoadOptions load;
    load.directory = TestModel(config);
    load.block_size = 64;
    return LoadModel(load);
  }
  void Take(bool ran) {
    const engine::StepPlan& plan = launched_.front();
    StepOutput output;
    try {
      output = ran ? runner_->Collect() : runner_->Abandon(plan);
    } catch (const std::exception& error) {
      errors.push_back(error.what());
      output = runner_->Abandon(plan);
    }
    for (size_t i = 0; i < plan.samples.size(); ++i) {
      if (scheduler_->Find(plan.samples[i].sequence) != nullptr)
        draws[plan.samples[i].sequence].push_back(output.draws[i]);
    }
    for (PromptScores& p : output.prompts) {
      auto& all = prompts[p.sequence];
      all.insert(all.end(), p.tokens.begin(), p.tokens.end());
    }
    scheduler_->Advance(output.result);
    scheduler_->TakeEvents();
    launched_.pop_front();
  }

  LoadedModel loaded_;
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  cache::PagePool pages_;
  cache::SlotPool slots_;
  cache::SnapshotStore snapshots_;
  std::unique_ptr<Executor> executor_;
  const std::chrono::milliseconds patience_;
  EngineLimits limits_;
  std::unique_ptr<StepRunner> runner_;
  CudaStepRunner* on_gpu_ = nullptr;
  std::optional<engine::Scheduler> scheduler_;
  std::deque<engine::StepPlan> launched_;
  uint64_t next_ = 1;
};

class CudaStepRunnerTest : public cuda::DeviceTest {};

// sample_sm90.h: the logarithm is CUDA's, within one place of the host's.
void ExpectNear(float a, float b) {
  EXPECT_GE(a, std::nextafter(b, -std::numeric_limits<float>::infinity()));
  EXPECT_LE(a, std::nextafter(b, std::numeric_limits<float>::infinity()));
}

void ExpectDrawnAlike(const SampleDraw& here, const SampleDraw& host) {
  EXPECT_EQ(here.failure, host.failure);
  ASSERT_EQ(here.output.token, host.output.token);
  ASSERT_EQ(here.output.logprob.has_value(), host.output.logprob.has_value());
  if (host.output.logprob) {
    EXPECT_EQ(here.output.logprob->token, host.output.logprob->token);
    EXPECT_EQ(here.output.logprob->rank, host.output.logprob->rank);
    ExpectNear(here.output.logprob->logprob, host.output.logprob->logprob);
  }
  ASSERT_EQ(here.output.top.size(), host.output.top.size());
  for (size_t i = 0; i < host.output.top.size(); ++i) {
    EXPECT_EQ(here.output.top[i].token, host.output.top[i].token);
    EXPECT_EQ(here.output.top[i].rank, host.output.top[i].rank);
    ExpectNear(here.output.top[i].logprob, host.output.top[i].logprob);
  }
}

void CompareWithHost(Rig& rig, const std::vector<GenerationRequest>& requests) {
  std::vector<uint64_t> first, second;
  for (const GenerationRequest& r : requests) first.push_back(rig.Add(r));
  rig.RunOut();
  EXPECT_GT(rig.on_gpu().steps_drawn_here(), 0);
  const auto here = std::move(rig.draws);
  const auto prompts = std::move(rig.prompts);
  EXPECT_TRUE(rig.errors.empty()) << rig.errors[0];
  rig.Use(true);
  for (const GenerationRequest& r : requests) second.push_back(rig.Add(r));
  rig.RunOut();
  EXPECT_TRUE(rig.errors.empty()) << rig.errors[0];
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int choice = 0; choice < requests[i].n; ++choice) {
      SCOPED_TRACE("choice " + std::to_string(choice) + " of request " + std::to_string(i));
      const auto& a = here.at(engine::SequenceId(first[i], choice));
      const auto& b = rig.draws.at(engine::SequenceId(second[i], choice));
      ASSERT_EQ(a.size(), b.size());
      for (size_t t = 0; t < a.size(); ++t) ExpectDrawnAlike(a[t], b[t]);
    }
    const auto scored = prompts.find(engine::SequenceId(first[i], 0));
    const auto expected = rig.prompts.find(engine::SequenceId(second[i], 0));
    ASSERT_EQ(scored == prompts.end(), expected == rig.prompts.end());
    if (expected == rig.prompts.end()) continue;
    ASSERT_EQ(scored->second.size(), expected->second.size());
    for (size_t t = 0; t < expected->second.size(); ++t) {
      EXPECT_EQ(scored->second[t].logprob->logprob, expected->second[t].logprob->logprob);
    }
  }
  rig.Use(false);
}

TEST_F(CudaStepRunnerTest, DrawsAreTheCpus) {
  for (const char* config : {"mini10", "ratio1_clamp"}) {
    Rig rig(config);
    const uint64_t seed = std::random_device()();
    SCOPED_TRACE(std::string(config) + " seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < 40; ++i) requests.push_back(RandomRequest(random, rig.limits(), 120));
    CompareWithHost(rig, requests);
  }
}

// Words that would have come, so that the bans have work to do; and the counts of answers that grow, are scored and
// come in late.
TEST_F(CudaStepRunnerTest, BansAndPenaltiesThatMatter) {
  Rig rig("mini10");
  GenerationRequest plain = Ask(40, 3, 60, rig.limits());
  plain.sampling.temperature = 0;
  const uint64_t id = engine::SequenceId(rig.Add(plain), 0);
  rig.RunOut();
  std::vector<int32_t> free_run;
  for (const SampleDraw& draw : rig.draws.at(id)) free_run.push_back(draw.output.token);
  ASSERT_EQ(free_run.size(), 60u);
  EXPECT_EQ(rig.on_gpu().steps_waited_for(), 0);
  rig.Use(false);

  GenerationRequest barred = plain;
  for (size_t t = 5; t + 3 < 60; t += 7) {
    barred.sampling.bad_words.push_back({free_run[t], free_run[t + 1]});
    barred.sampling.bad_words.push_back({free_run[t + 1], free_run[t + 2], free_run[t + 3]});
  }
  GenerationRequest repeated = plain;
  repeated.sampling.repetition_penalty = 0.7f;  // what came once comes again
  GenerationRequest counted = plain;
  counted.sampling.frequency_penalty = 1.5f;
  counted.sampling.presence_penalty = 0.5f;
  counted.n = 9;  // more than slots, and than tables
  counted.sampling.temperature = 1;
  GenerationRequest scored = counted;
  scored.n = 1;
  scored.sampling.prompt_logprobs = 1;
  CompareWithHost(rig, {barred, repeated, counted, scored, plain});
}

struct Gate {
  std::atomic<bool> open{false};
};
void CUDART_CB HoldUp(void* gate) {
  while (!static_cast<Gate*>(gate)->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Both launched steps fail, named, and so does what is launched while the GPU is still held up; afterwards the same
// request gives what it gave before.
TEST_F(CudaStepRunnerTest, AStepThatDoesNotEndFailsAlone) {
  Rig rig("mini10", std::chrono::milliseconds(100));
  const GenerationRequest request = Ask(20, 3, 10, rig.limits());
  const uint64_t before = engine::SequenceId(rig.Add(request), 0);
  rig.RunOut();
  ASSERT_TRUE(rig.errors.empty()) << rig.errors[0];
  Gate gate;
  SENKO_CUDA(cudaLaunchHostFunc(rig.gpu().stream(), HoldUp, &gate));
  rig.Add(request);
  rig.RunOut();
  ASSERT_EQ(rig.errors.size(), 2u);
  for (const std::string& error : rig.errors) {
    EXPECT_NE(error.find("has not ended within 100 ms"), std::string::npos) << error;
    EXPECT_NE(error.find("step "), std::string::npos) << error;
  }
  rig.Add(request);
  rig.RunOut();
  EXPECT_EQ(rig.errors.size(), 3u);
  EXPECT_NE(rig.errors.back().find("given up"), std::string::npos) << rig.errors.back();
  gate.open = true;
  SENKO_CUDA(cudaStreamSynchronize(rig.gpu().stream()));
  const uint64_t after = engine::SequenceId(rig.Add(request), 0);
  rig.RunOut();
  ASSERT_EQ(rig.draws.at(after).size(), 10u);
  for (size_t t = 0; t < 10; ++t) ExpectDrawnAlike(rig.draws.at(after)[t], rig.draws.at(before)[t]);
}

}  // namespace
}  // namespace senko::runtime
