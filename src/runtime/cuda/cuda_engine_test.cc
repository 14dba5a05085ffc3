// The engine on a GPU: steps launched ahead and draws made there give each client what it gets alone.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/test_device.h"
#include "runtime/cuda/random_requests.h"
#include "runtime/engine_test_client.h"

namespace senko::runtime {
namespace {

class CudaEngineTest : public cuda::DeviceTest {};

EngineOptions Options(const std::string& config, bool exact) {
  EngineOptions options = TestEngineOptions(config, exact);
  options.device = "cuda";
  return options;
}

void ExpectSameToken(const TokenOutput& a, const TokenOutput& b) {
  EXPECT_EQ(a.token, b.token);
  ASSERT_EQ(a.logprob.has_value(), b.logprob.has_value());
  if (a.logprob) {
    EXPECT_EQ(a.logprob->logprob, b.logprob->logprob);
    EXPECT_EQ(a.logprob->rank, b.logprob->rank);
  }
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token);
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob);
    EXPECT_EQ(a.top[i].rank, static_cast<int64_t>(i) + 1);
  }
}

// In every bit.
void ExpectSame(const Collector& a, const Collector& b) {
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  for (size_t choice = 0; choice < a.tokens.size(); ++choice) {
    EXPECT_EQ(a.finish[choice], b.finish[choice]) << a.errors[choice] << " | " << b.errors[choice];
    ASSERT_EQ(a.tokens[choice].size(), b.tokens[choice].size()) << choice;
    for (size_t t = 0; t < a.tokens[choice].size(); ++t) {
      SCOPED_TRACE("token " + std::to_string(t) + " of choice " + std::to_string(choice));
      ExpectSameToken(a.tokens[choice][t], b.tokens[choice][t]);
    }
  }
  ASSERT_EQ(a.prompt.size(), b.prompt.size());
  for (size_t i = 0; i < a.prompt.size(); ++i) ExpectSameToken(a.prompt[i], b.prompt[i]);
}

void WaitUntilEmpty(const Engine& engine) {
  for (int n = 0; n < 5000 && engine.stats().slots_in_use > 0; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(engine.stats().slots_in_use, 0);
  EXPECT_EQ(engine.stats().pages_in_use, 0);
}

// All at once, among others that are cancelled or stopped on the way.
std::vector<std::shared_ptr<Collector>> Crowd(Engine& engine, const std::vector<GenerationRequest>& requests,
                                              uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::shared_ptr<Collector>> sinks, others;
  for (const GenerationRequest& request : requests) {
    if (random() % 2 == 0) {
      const GenerationRequest other = RandomRequest(random, engine.limits());
      others.push_back(std::make_shared<Collector>(other.n));
      const uint64_t id = engine.Submit(other, others.back());
      if (random() % 2 == 0) others.back()->WaitForTokens(random() % 4);
      if (random() % 4 != 0) {
        engine.Cancel(id);
      } else {
        engine.Stop(id, static_cast<int>(random() % static_cast<uint64_t>(other.n)));
      }
    }
    sinks.push_back(Submit(engine, request));
  }
  for (const auto& sink : sinks) sink->Wait();
  for (const auto& sink : others) sink->Wait();
  return sinks;
}

void CompareAloneAndCrowded(const std::string& config, bool exact) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(config + (exact ? " exact" : "") + " seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  EngineOptions options = Options(config, exact);
  // Without exact mode an answer depends on its hits by design.
  options.enable_prefix_caching = exact;
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Collector>> alone;
  EngineLimits limits;
  {
    const auto engine = LoadEngine(options);
    limits = engine->limits();
    for (int i = 0; i < 30; ++i) {
      requests.push_back(RandomRequest(random, limits));
      alone.push_back(Submit(*engine, requests.back()));
      alone.back()->Wait();
      EXPECT_NE(alone.back()->finish[0], FinishReason::kError) << alone.back()->error;
    }
    WaitUntilEmpty(*engine);
  }
  // Few pages, so that some are preempted and computed again.
  options.max_model_len = 4 * 64;
  options.kv_cache_memory_bytes = 8 * limits.slot_bytes + 9 * limits.page_bytes;
  const auto engine = LoadEngine(options);
  // How they meet is up to the threads: again, until somebody was preempted.
  for (int run = 0; run < 2 || (run < 30 && engine->stats().preemptions == 0); ++run) {
    const auto crowd = Crowd(*engine, requests, seed + static_cast<uint64_t>(run));
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i) + ", run " + std::to_string(run));
      ExpectSame(*alone[i], *crowd[i]);
    }
  }
  WaitUntilEmpty(*engine);
  EXPECT_GT(engine->stats().preemptions, 0u);
  if (exact) {
    EXPECT_GT(engine->stats().prefix_hits, 0u);
  }
}

TEST_F(CudaEngineTest, EachGetsInACrowdWhatItGetsAloneExact) { CompareAloneAndCrowded("mini10", true); }
TEST_F(CudaEngineTest, EachGetsInACrowdWhatItGetsAloneWithReplay) { CompareAloneAndCrowded("mini10", false); }
TEST_F(CudaEngineTest, EachGetsInACrowdWhatItGetsAloneRatioOne) { CompareAloneAndCrowded("ratio1_clamp", false); }
TEST_F(CudaEngineTest, EachGetsInACrowdWhatItGetsAloneWindowOnly) {
  // Its pages hold nothing, so there are always enough and nobody is preempted; one step at a time, without graphs.
  std::mt19937_64 random(std::random_device{}());
  EngineOptions options = Options("window_only", false);
  options.enable_prefix_caching = false;
  const auto engine = LoadEngine(options);
  options.async_scheduling = false;
  options.cuda_graphs = false;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(RandomRequest(random, engine->limits()));
  const auto ahead = Crowd(*engine, requests, 5);
  engine->Shutdown();
  const auto plain = LoadEngine(options);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const auto sink = Submit(*plain, requests[i]);
    sink->Wait();
    ExpectSame(*sink, *ahead[i]);
  }
}

// As EngineEnds does on the CPU: the draw fails with a row of the request already on the way in the next step.
TEST_F(CudaEngineTest, AFailedDrawEndsItsRequestOnly) {
  const auto engine = LoadEngine(Options("mini10", false));
  GenerationRequest ordinary = Ask(60, 1, 40, engine->limits());
  ordinary.sampling.frequency_penalty = 0.5f;
  const auto alone = Submit(*engine, ordinary);
  alone->Wait();
  ASSERT_EQ(alone->tokens[0].size(), 40u);
  ordinary.cache_salt = "again";  // no hit either
  for (const bool penalised : {false, true}) {
    const auto beside = Submit(*engine, ordinary);
    beside->WaitForTokens(2);
    GenerationRequest hopeless = Ask(5, 2, 20, engine->limits());
    hopeless.sampling.min_tokens = 1;
    for (int32_t v = 0; v < engine->limits().vocab_size; ++v) hopeless.sampling.bad_words.push_back({v});
    if (penalised) hopeless.sampling.presence_penalty = 0.5f;
    const auto failed = Submit(*engine, hopeless);
    failed->Wait();
    EXPECT_EQ(failed->finish[0], FinishReason::kError);
    EXPECT_TRUE(failed->request_fault);
    EXPECT_NE(failed->error.find("bad_words"), std::string::npos) << failed->error;
    beside->Wait();
    EXPECT_EQ(beside->finish[0], FinishReason::kLength) << beside->error;
    EXPECT_EQ(beside->Ids(), alone->Ids());
    ordinary.cache_salt += "!";
  }
}

TEST_F(CudaEngineTest, MoreChoicesThanSlotsAndTables) {
  const auto engine = LoadEngine(Options("mini10", false));
  GenerationRequest request = Ask(70, 7, 6, engine->limits());
  request.n = 40;
  request.sampling.repetition_penalty = 1.5f;
  const auto many = Submit(*engine, request);
  const auto neighbour = Submit(*engine, Ask(70, 8, 3, engine->limits()));
  many->Wait();
  neighbour->Wait();
  EXPECT_EQ(neighbour->finish[0], FinishReason::kLength) << neighbour->error;
  for (size_t choice = 0; choice < 40; ++choice) {
    EXPECT_EQ(many->finish[choice], FinishReason::kLength) << many->errors[choice];
    EXPECT_EQ(many->tokens[choice].size(), 6u);
  }
}

}  // namespace
}  // namespace senko::runtime
