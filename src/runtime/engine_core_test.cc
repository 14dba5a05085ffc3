// The engine behind the public header, on real (random) models: what a client gets is what one sequence alone gives.
#include "runtime/engine_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "ops/sample/sample.h"
#include "runtime/generate.h"
#include "runtime/test_models.h"

namespace senko::runtime {
namespace {

// Everything a request delivered.
class Collector : public OutputSink {
 public:
  explicit Collector(int n = 1)
      : tokens(static_cast<size_t>(n)), finish(static_cast<size_t>(n)), errors(static_cast<size_t>(n)), open_(n) {}
  void OnScheduled(const RequestUsage& u, bool resumed) override {
    std::lock_guard lock(mutex_);
    if (!resumed) usage = u;
    ++scheduled;
    delivered_ = false;
  }
  void OnPromptLogprobs(std::vector<TokenOutput> p) override {
    std::lock_guard lock(mutex_);
    prompt = std::move(p);
    ++prompts_told;
    delivered_ = false;
  }
  void OnOutput(OutputChunk chunk) override {
    std::lock_guard lock(mutex_);
    const auto choice = static_cast<size_t>(chunk.choice);
    ASSERT_FALSE(finish.at(choice)) << "output after the end";
    for (TokenOutput& token : chunk.tokens) tokens[choice].push_back(std::move(token));
    delivered_ = false;
    if (chunk.finish) {
      last_tokens = chunk.tokens.size();
      finish[choice] = chunk.finish;
      error = errors[choice] = chunk.error;
      request_fault = chunk.request_fault;
      stop_token = chunk.stop_token;
      --open_;
    }
    changed_.notify_all();
  }
  void OnStepDelivered() override {
    std::lock_guard lock(mutex_);
    delivered_ = true;
    changed_.notify_all();
  }
  // For the end of all choices, and for word that the step which brought it has called everybody.
  void Wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [&] { return open_ == 0 && delivered_; }));
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(120), [&] { return tokens[0].size() >= count || open_ == 0; }));
  }
  std::vector<int32_t> Ids(int choice = 0) const {
    std::vector<int32_t> ids;
    for (const TokenOutput& t : tokens[static_cast<size_t>(choice)]) ids.push_back(t.token);
    return ids;
  }

  std::vector<std::vector<TokenOutput>> tokens;
  std::vector<std::optional<FinishReason>> finish;
  std::vector<TokenOutput> prompt;
  RequestUsage usage;
  int scheduled = 0, prompts_told = 0;
  std::string error;                // of the last one that ended
  std::vector<std::string> errors;  // of each choice
  bool request_fault = false;       // of the last one that ended
  std::optional<int32_t> stop_token;
  size_t last_tokens = 0;  // of the chunk that said how a choice ended

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool delivered_ = true;
  int open_;
};

EngineOptions Options(const std::string& config, bool exact = false) {
  EngineOptions options;
  options.model = TestModel(config).string();
  options.threads = 2;
  options.block_size = 64;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.kv_cache_memory_bytes = int64_t{24} << 20;
  options.encoder_replay = !exact;
  options.decoder_replay = exact ? "full" : "trim";
  return options;
}

GenerationRequest Ask(int64_t length, uint64_t seed, int64_t max_tokens, const EngineLimits& limits) {
  GenerationRequest request;
  for (int64_t i = 0; i < length; ++i) {
    const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
    request.prompt.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(limits.vocab_size - 1)));
  }
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = seed;
  return request;
}

std::shared_ptr<Collector> Submit(Engine& engine, const GenerationRequest& request) {
  auto sink = std::make_shared<Collector>(request.n);
  engine.Submit(request, sink);
  return sink;
}

// One sequence alone, driven by hand.
std::vector<int32_t> Alone(const EngineOptions& options, const GenerationRequest& request) {
  LoadOptions load;
  load.directory = options.model;
  load.block_size = options.block_size;
  const LoadedModel loaded = LoadModel(load);
  ThreadPool pool(1);
  cache::PagePool pages(loaded.model->page_layout(), 16);
  cache::SlotPool slots(loaded.model->slot_layout(), 1);
  CpuExecutor executor(*loaded.model, pages, pool, model::WorkspaceLimits{512, 1});
  GenerateParams params;
  params.max_tokens = request.sampling.max_tokens;
  params.temperature = request.sampling.temperature;
  params.seed = *request.sampling.seed;
  params.decoder_replay = config::ParseDecoderReplay(options.decoder_replay);
  return Generate(executor, slots, request.prompt, params, [](int32_t) { return true; }, {}).tokens;
}

TEST(EngineCore, GivesWhatOneSequenceAloneGives) {
  for (const bool exact : {false, true}) {
    const EngineOptions options = Options("mini10", exact);
    const auto engine = LoadEngine(options);
    for (const float temperature : {0.0f, 1.0f}) {
      GenerationRequest request = Ask(150, 3, 40, engine->limits());
      request.sampling.temperature = temperature;
      request.cache_salt = std::to_string(temperature);
      const auto got = Submit(*engine, request);
      got->Wait();
      EXPECT_EQ(got->Ids(), Alone(options, request)) << exact << " " << temperature;
      EXPECT_EQ(got->finish[0], FinishReason::kLength);
    }
  }
}

// Alone, in a batch of many, with other chunks and with or without steps ahead: the same tokens and logprobs.
TEST(EngineCore, NeighboursChunksAndStepsAheadChangeNothing) {
  EngineOptions options = Options("mini10");
  options.enable_prefix_caching = false;
  std::vector<std::vector<TokenOutput>> expected;
  for (const int64_t rows : {64, 17}) {
    for (const bool ahead : {true, false}) {
      for (const bool together : {false, true}) {
        options.max_num_batched_tokens = rows;
        options.async_scheduling = ahead;
        const auto engine = LoadEngine(options);
        std::vector<std::shared_ptr<Collector>> sinks;
        for (uint64_t seed = 1; seed <= 6; ++seed) {
          GenerationRequest request = Ask(20 + 19 * static_cast<int64_t>(seed), seed, 8, engine->limits());
          request.sampling.logprobs = 3;
          sinks.push_back(Submit(*engine, request));
          if (!together) sinks.back()->Wait();
        }
        for (size_t i = 0; i < sinks.size(); ++i) {
          sinks[i]->Wait();
          if (expected.size() <= i) expected.push_back(sinks[i]->tokens[0]);
          ASSERT_EQ(sinks[i]->tokens[0].size(), expected[i].size());
          for (size_t t = 0; t < expected[i].size(); ++t) {
            EXPECT_EQ(sinks[i]->tokens[0][t].token, expected[i][t].token);
            EXPECT_EQ(sinks[i]->tokens[0][t].logprob->logprob, expected[i][t].logprob->logprob);
            EXPECT_EQ(sinks[i]->tokens[0][t].top.size(), 3u);
          }
        }
      }
    }
  }
}

// Tokens, and their logprobs in every bit.
void ExpectSame(const Collector& a, const Collector& b) {
  ASSERT_EQ(a.tokens[0].size(), b.tokens[0].size());
  for (size_t t = 0; t < a.tokens[0].size(); ++t) {
    EXPECT_EQ(a.tokens[0][t].token, b.tokens[0][t].token) << t;
    EXPECT_EQ(a.tokens[0][t].logprob->logprob, b.tokens[0][t].logprob->logprob) << t;
  }
}

TEST(EngineCore, ExactModeGivesTheSameColdWarmChunkedInABatchAndPreempted) {
  EngineOptions options = Options("mini10", true);
  const auto roomy = LoadEngine(options);
  options.max_num_batched_tokens = 19;
  const auto chunked = LoadEngine(options);
  options.max_num_batched_tokens = 64;
  options.kv_cache_memory_bytes = 8 * roomy->limits().slot_bytes + 9 * roomy->limits().page_bytes;
  options.max_model_len = 8 * 64;
  const auto tight = LoadEngine(options);
  std::vector<std::shared_ptr<Collector>> cold, again, crowded, pieces;
  const auto ask = [&](uint64_t seed) {
    GenerationRequest request = Ask(100, seed, 120, roomy->limits());
    request.sampling.logprobs = 0;
    return request;
  };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const GenerationRequest request = ask(seed);
    cold.push_back(Submit(*roomy, request));
    cold.back()->Wait();
    again.push_back(Submit(*roomy, request));
    again.back()->Wait();
    EXPECT_EQ(again.back()->usage.cached_tokens, 64);
  }
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    crowded.push_back(Submit(*tight, ask(seed)));
    pieces.push_back(Submit(*chunked, ask(seed)));
  }
  for (size_t i = 0; i < cold.size(); ++i) {
    for (const auto* other : {&again, &crowded, &pieces}) {
      (*other)[i]->Wait();
      ExpectSame(*cold[i], *(*other)[i]);
    }
  }
  EXPECT_GT(tight->stats().preemptions, 0u);
}

TEST(EngineCore, AHitIsTheSessionsHit) {
  const EngineOptions options = Options("mini10");
  const auto engine = LoadEngine(options);
  GenerationRequest request = Ask(180, 5, 10, engine->limits());
  Submit(*engine, request)->Wait();
  const auto warm = Submit(*engine, request);
  warm->Wait();
  EXPECT_EQ(warm->usage.cached_tokens, 128);
  EXPECT_EQ(engine->stats().replayed_tokens, 16u);

  LoadOptions load;
  load.directory = options.model;
  load.block_size = 64;
  const LoadedModel loaded = LoadModel(load);
  ThreadPool pool(1);
  cache::PagePool pages(loaded.model->page_layout(), 16);
  cache::SlotPool slots(loaded.model->slot_layout(), 2);
  CpuExecutor executor(*loaded.model, pages, pool, model::WorkspaceLimits{512, 1});
  Session cold(executor, slots, 180, DecoderReplay::kTrim), hit(executor, slots, 180, DecoderReplay::kTrim);
  const std::span<const int32_t> prompt(request.prompt);
  cold.Feed(prompt);
  hit.AdoptPrefix(prompt.first(128), cold.pages());
  int64_t kept = hit.Feed(prompt.subspan(128));
  std::vector<float> logits(static_cast<size_t>(loaded.config.vocab_size));
  for (const TokenOutput& token : warm->tokens[0]) {
    executor.Logits(kept - 1, 1, logits.data(), nullptr);
    ops::SampleParams sample;
    sample.vocab = loaded.config.vocab_size;
    sample.logits = logits.data();
    sample.temperature = 1;
    sample.seed = 5;
    sample.position = static_cast<uint64_t>(hit.size());
    EXPECT_EQ(token.token, ops::SampleCpu(sample));
    kept = hit.Feed({&token.token, 1});
  }
}

TEST(EngineCore, ChoicesShareThePromptAndDiffer) {
  const auto engine = LoadEngine(Options("mini10"));
  GenerationRequest request = Ask(100, 7, 10, engine->limits());
  request.n = 4;
  const auto many = Submit(*engine, request);
  many->Wait();
  EXPECT_EQ(engine->stats().encoder_rows, 100u + 4 * 9);
  request.n = 1;
  request.cache_salt = "alone";
  const auto one = Submit(*engine, request);
  one->Wait();
  EXPECT_EQ(one->Ids(), many->Ids(0));
  EXPECT_NE(many->Ids(0), many->Ids(1));
  EXPECT_NE(many->Ids(1), many->Ids(2));
}

TEST(EngineCore, MoreChoicesThanSlots) {
  const auto engine = LoadEngine(Options("mini10"));
  GenerationRequest request = Ask(70, 7, 3, engine->limits());
  request.n = 40;
  const auto many = Submit(*engine, request);
  const auto neighbour = Submit(*engine, Ask(70, 8, 3, engine->limits()));
  many->Wait();
  neighbour->Wait();
  EXPECT_EQ(neighbour->finish[0], FinishReason::kLength) << neighbour->error;
  for (int choice = 0; choice < request.n; ++choice) {
    EXPECT_EQ(many->finish[static_cast<size_t>(choice)], FinishReason::kLength) << many->error;
    EXPECT_EQ(many->Ids(choice).size(), 3u);
  }
}

TEST(EngineCore, PromptScoresAreOfEveryTokenAndKeepEveryRow) {
  const auto engine = LoadEngine(Options("mini10"));
  GenerationRequest request = Ask(150, 9, 2, engine->limits());
  request.sampling.prompt_logprobs = 2;
  const auto scored = Submit(*engine, request);
  scored->Wait();
  ASSERT_EQ(scored->prompt.size(), 150u);
  EXPECT_FALSE(scored->prompt[0].logprob);
  for (size_t i = 1; i < scored->prompt.size(); ++i) {
    ASSERT_TRUE(scored->prompt[i].logprob) << i;
    EXPECT_EQ(scored->prompt[i].token, request.prompt[i]);
    EXPECT_LT(scored->prompt[i].logprob->logprob, 0);
    EXPECT_EQ(scored->prompt[i].top.size(), 2u);
  }
  EXPECT_EQ(engine->stats().trimmed_rows, 0u);
}

// Wherever a step's end cuts the prompt, also before its last row: the same scores, each token's, told once.
TEST(EngineCore, PromptScoresDoNotDependOnTheCut) {
  EngineOptions options = Options("mini10");
  options.enable_prefix_caching = false;
  const auto engine = LoadEngine(options);
  options.max_num_batched_tokens = 512;
  const auto whole = LoadEngine(options);
  for (const int64_t length : {1, 2, 63, 64, 65, 66, 128, 129, 130}) {
    GenerationRequest request = Ask(length, 4, 3, engine->limits());
    request.sampling.prompt_logprobs = 1;
    request.n = length > 60 ? 3 : 1;
    const auto expected = Submit(*whole, request), cut = Submit(*engine, request);
    expected->Wait();
    cut->Wait();
    EXPECT_EQ(expected->prompts_told, 1);
    EXPECT_EQ(cut->prompts_told, 1) << length;
    ASSERT_EQ(cut->prompt.size(), static_cast<size_t>(length));
    for (size_t i = 0; i < cut->prompt.size(); ++i) {
      EXPECT_EQ(cut->prompt[i].token, request.prompt[i]) << i;
      ASSERT_EQ(cut->prompt[i].logprob.has_value(), i > 0) << i << " of " << length;
      if (i > 0) {
        EXPECT_EQ(cut->prompt[i].logprob->logprob, expected->prompt[i].logprob->logprob);
      }
    }
  }
}

// A request that bars every token fails in its first draw, with a row of it already on the way in the next step. Its
// history has a hole there, which nobody else may notice.
TEST(EngineCore, AFailedDrawEndsItsRequestOnly) {
  EngineOptions options = Options("mini10");
  const auto engine = LoadEngine(options);
  const GenerationRequest ordinary = Ask(60, 1, 40, engine->limits());
  const auto alone = Submit(*engine, ordinary);
  alone->Wait();
  ASSERT_EQ(alone->tokens[0].size(), 40u);
  for (const bool looks_back : {false, true}) {
    const auto beside = Submit(*engine, ordinary);
    beside->WaitForTokens(2);
    GenerationRequest hopeless = Ask(5, 2, 20, engine->limits());
    hopeless.sampling.min_tokens = 1;
    for (int32_t v = 0; v < engine->limits().vocab_size; ++v) hopeless.sampling.bad_words.push_back({v});
    if (looks_back) hopeless.sampling.presence_penalty = 0.5f;
    const auto failed = Submit(*engine, hopeless);
    failed->Wait();
    EXPECT_EQ(failed->finish[0], FinishReason::kError);
    EXPECT_NE(failed->error.find("bad_words"), std::string::npos) << failed->error;
    beside->Wait();
    EXPECT_EQ(beside->finish[0], FinishReason::kLength) << beside->error;
    EXPECT_EQ(beside->Ids(), alone->Ids());
  }
}

TEST(EngineCore, StopsCancelsAndShutdownGiveEverythingBack) {
  EngineOptions options = Options("mini10");
  const auto engine = LoadEngine(options);
  std::vector<std::shared_ptr<Collector>> sinks;
  std::vector<uint64_t> ids;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sinks.push_back(std::make_shared<Collector>(1));
    ids.push_back(engine->Submit(Ask(60, seed, 300, engine->limits()), sinks.back()));
  }
  sinks[0]->WaitForTokens(3);
  engine->Stop(ids[0], 0);
  engine->Cancel(ids[1]);
  engine->Cancel(ids[19]);  // still waiting
  engine->Cancel(999);
  engine->Stop(999, 3);
  sinks[0]->Wait();
  EXPECT_EQ(sinks[0]->finish[0], FinishReason::kStop);
  sinks[1]->Wait();
  sinks[19]->Wait();
  EXPECT_EQ(sinks[19]->finish[0], FinishReason::kCancelled);
  EXPECT_TRUE(sinks[19]->tokens[0].empty());
  for (size_t i = 2; i < 19; ++i) engine->Cancel(ids[i]);
  for (const auto& sink : sinks) sink->Wait();
  for (int n = 0; n < 30000 && engine->stats().slots_in_use > 0; ++n)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(engine->stats().slots_in_use, 0);
  EXPECT_EQ(engine->stats().pages_in_use, 0);
  EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);

  const auto last = Submit(*engine, Ask(60, 50, 300, engine->limits()));
  last->WaitForTokens(1);
  engine->Shutdown();
  last->Wait();
  EXPECT_EQ(last->finish[0], FinishReason::kCancelled);
  EXPECT_THROW(Submit(*engine, Ask(60, 50, 300, engine->limits())), Error);
}

TEST(EngineCore, EosAndStopTokensEndAndAreNamed) {
  const auto engine = LoadEngine(Options("mini10"));
  GenerationRequest request = Ask(60, 4, 20, engine->limits());
  const auto free_run = Submit(*engine, request);
  free_run->Wait();
  EXPECT_EQ(free_run->last_tokens, 1u);
  const int32_t fifth = free_run->Ids()[4];
  request.sampling.stop_token_ids = {fifth};
  const auto stopped = Submit(*engine, request);
  stopped->Wait();
  EXPECT_EQ(stopped->finish[0], FinishReason::kStop);
  EXPECT_EQ(stopped->stop_token, fifth);
  EXPECT_EQ(stopped->last_tokens, 1u);
  EXPECT_EQ(stopped->Ids().back(), fifth);
  request.sampling.stop_token_ids.clear();
  request.sampling.ignore_eos = false;
  request.sampling.logit_bias = {{engine->limits().eos_token, 100.0f}};
  request.sampling.min_tokens = 3;
  const auto ended = Submit(*engine, request);
  ended->Wait();
  EXPECT_EQ(ended->stop_token, engine->limits().eos_token);
  EXPECT_EQ(ended->last_tokens, 1u);
  EXPECT_EQ(ended->Ids().size(), 4u);  // EOS cannot be drawn before three tokens
}

// The scores of a prompt that takes every position are those of the same prompt where there is room behind it.
TEST(EngineCore, ScoresAPromptOfAllPositions) {
  EngineOptions options = Options("mini10");
  std::vector<std::vector<TokenOutput>> scores;
  for (const int64_t length : {129, 140}) {  // the last chunk of 129 rows has one
    options.max_model_len = length;
    const auto engine = LoadEngine(options);
    ASSERT_EQ(engine->limits().max_model_len, length);
    GenerationRequest request = Ask(129, 9, 1, engine->limits());
    request.sampling.prompt_logprobs = 1;
    const auto sink = Submit(*engine, request);
    sink->Wait();
    EXPECT_EQ(sink->finish[0], FinishReason::kLength) << sink->error;
    EXPECT_EQ(sink->Ids().size(), 1u);
    scores.push_back(sink->prompt);
  }
  ASSERT_EQ(scores[0].size(), 129u);
  ASSERT_EQ(scores[1].size(), 129u);
  for (size_t i = 1; i < 129; ++i) EXPECT_EQ(scores[0][i].logprob->logprob, scores[1][i].logprob->logprob) << i;
}

TEST(EngineCore, RefusesByNameAndGoesOn) {
  EngineOptions options = Options("mini10");
  options.max_num_waiting = 4;
  options.max_num_seqs = 1;
  const auto engine = LoadEngine(options);
  const EngineLimits& limits = engine->limits();
  auto refused = [&](const std::function<void(GenerationRequest&)>& change, const std::string& field) {
    GenerationRequest request = Ask(10, 1, 5, limits);
    change(request);
    try {
      Submit(*engine, request);
      FAIL() << field;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr(field));
    }
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto vocab = static_cast<int32_t>(limits.vocab_size);
  refused([](auto& r) { r.prompt.clear(); }, "prompt");
  refused([&](auto& r) { r.prompt[3] = vocab; }, "prompt[3]");
  refused([&](auto& r) { r.prompt[3] = -1; }, "prompt[3]");
  refused([&](auto& r) { r.prompt[3] = limits.image_token; }, "image");
  refused([&](auto& r) { r.prompt.assign(static_cast<size_t>(limits.max_model_len), 3); }, "prompt");
  refused([](auto& r) { r.n = 0; }, "n:");
  refused([](auto& r) { r.n = kMaxChoices + 1; }, "n:");
  refused([](auto& r) { r.sampling.max_tokens = 0; }, "max_tokens");
  refused([](auto& r) { r.sampling.min_tokens = 6; }, "min_tokens");
  for (const float bad : {nan, inf, -1.0f}) {
    refused([&](auto& r) { r.sampling.temperature = bad; }, "temperature");
    refused([&](auto& r) { r.sampling.top_p = bad; }, "top_p");
    refused([&](auto& r) { r.sampling.min_p = bad; }, "min_p");
    refused([&](auto& r) { r.sampling.repetition_penalty = bad; }, "repetition_penalty");
  }
  for (const float bad : {nan, inf, -2.5f, 2.5f}) {
    refused([&](auto& r) { r.sampling.presence_penalty = bad; }, "presence_penalty");
    refused([&](auto& r) { r.sampling.frequency_penalty = bad; }, "frequency_penalty");
  }
  refused([](auto& r) { r.sampling.top_k = -2; }, "top_k");
  refused([&](auto& r) { r.sampling.logit_bias = {{vocab, 1.0f}}; }, "logit_bias");
  refused([&](auto& r) { r.sampling.logit_bias = {{1, inf}}; }, "logit_bias");
  refused([&](auto& r) { r.sampling.stop_token_ids = {vocab}; }, "stop_token_ids");
  refused([](auto& r) { r.sampling.bad_words = {{}}; }, "bad_words");
  refused([](auto& r) { r.sampling.logprobs = kMaxLogprobs + 1; }, "logprobs");

  const auto running = Submit(*engine, Ask(10, 1, 200, limits));
  running->WaitForTokens(1);
  std::vector<std::shared_ptr<Collector>> waiting;
  int overloaded = 0;
  for (int i = 0; i < 8; ++i) {
    try {
      waiting.push_back(Submit(*engine, Ask(10, 2, 1, limits)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOverloaded);
      ++overloaded;
    }
  }
  EXPECT_GE(overloaded, 3);
  for (const auto& sink : waiting) sink->Wait();
  running->Wait();
}

// From many threads at once, again and again: as many wait as may, whatever the engine's thread has taken over by then,
// and a request is one however many choices it has.
TEST(EngineCore, ExactlySoManyWait) {
  constexpr int kMost = 60, kThreads = 4, kEach = 60;
  EngineOptions options = Options("mini10");
  options.max_num_waiting = kMost;
  options.max_num_seqs = 1;
  const auto engine = LoadEngine(options);
  const EngineLimits& limits = engine->limits();
  for (int round = 0; round < 5; ++round) {
    auto blocker = std::make_shared<Collector>();
    const uint64_t blocking = engine->Submit(Ask(10, 1, limits.max_model_len - 10, limits), blocker);
    blocker->WaitForTokens(1);
    std::mutex mutex;
    std::vector<std::pair<uint64_t, std::shared_ptr<Collector>>> in;
    std::atomic<int> refused = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          GenerationRequest request = Ask(10, 2, 1, limits);
          request.n = t == 0 ? 1 : kMaxChoices;  // many take the engine's thread long to take over
          auto sink = std::make_shared<Collector>(request.n);
          try {
            const uint64_t id = engine->Submit(request, sink);
            const std::lock_guard lock(mutex);
            in.emplace_back(id, sink);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kOverloaded);
            ++refused;
          }
          std::this_thread::yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(blocker->finish[0]) << "the blocker ended; the count says nothing";
    EXPECT_EQ(in.size(), static_cast<size_t>(kMost));
    EXPECT_EQ(refused, kThreads * kEach - kMost);
    EXPECT_EQ(engine->stats().waiting, kMost);
    // One that leaves without having run makes room for one.
    engine->Cancel(in[0].first);
    in[0].second->Wait();
    for (int n = 0; n < 1000 && engine->stats().waiting == kMost; ++n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    in.emplace_back(0, Submit(*engine, Ask(10, 2, 1, limits)));
    EXPECT_THROW(Submit(*engine, Ask(10, 2, 1, limits)), Error);
    for (const auto& [id, sink] : in) engine->Cancel(id);
    engine->Cancel(blocking);
    for (const auto& [id, sink] : in) sink->Wait();
    EXPECT_EQ(engine->stats().waiting, 0);
  }
}

// A copy of the model whose last norm overflows, so that no logit is finite.
std::filesystem::path SpoiltModel(const std::string& config) {
  const std::filesystem::path from = TestModel(config), to = from.string() + "_spoilt";
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  std::fstream file(to / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const Json tensors = ParseJson(header, "header");
  for (const auto& [name, tensor] : tensors.items()) {
    if (name != "norm.weight" && name != "model.norm.weight") continue;
    const auto begin = tensor.at("data_offsets")[0].get<uint64_t>(), end = tensor.at("data_offsets")[1].get<uint64_t>();
    file.seekp(static_cast<std::streamoff>(sizeof size + size + begin));
    file << std::string(end - begin, '\x7F');  // about 3.4e38, in bf16 and in float
    EXPECT_TRUE(file.flush().good());
    return to;
  }
  ADD_FAILURE() << "no last norm in " << header.substr(0, 1000);
  return to;
}

// A prompt that cannot be computed ends all of its choices, and each is told why.
TEST(EngineCore, EveryChoiceOfAFailedPromptHasItsReason) {
  EngineOptions options = Options("mini10");
  options.model = SpoiltModel("mini10").string();
  const auto engine = LoadEngine(options);
  GenerationRequest request = Ask(150, 1, 5, engine->limits());  // the first step of three draws nothing
  request.n = 3;
  request.sampling.prompt_logprobs = 0;
  const auto failed = Submit(*engine, request);
  failed->Wait();
  for (int choice = 0; choice < request.n; ++choice) {
    EXPECT_EQ(failed->finish[static_cast<size_t>(choice)], FinishReason::kError);
    EXPECT_FALSE(failed->errors[static_cast<size_t>(choice)].empty()) << choice;
  }
  EXPECT_FALSE(failed->request_fault);
}

// What nobody could answer is told apart from what went wrong here.
TEST(EngineCore, ARequestThatBarsEveryTokenIsAtFault) {
  const auto engine = LoadEngine(Options("mini10"));
  GenerationRequest request = Ask(20, 1, 5, engine->limits());
  request.sampling.min_tokens = 1;
  for (int32_t id = 0; id < engine->limits().vocab_size; ++id) request.sampling.stop_token_ids.push_back(id);
  const auto failed = Submit(*engine, request);
  failed->Wait();
  EXPECT_EQ(failed->finish[0], FinishReason::kError);
  EXPECT_TRUE(failed->request_fault);
  EXPECT_NE(failed->errors[0].find("stop_token_ids"), std::string::npos) << failed->errors[0];
}

// A long prompt in pieces beside short ones, cancelled at random: nothing is left and nobody is disturbed.
TEST(EngineCore, RandomClientsLeaveNothing) {
  EngineOptions options = Options("mini10");
  const auto engine = LoadEngine(options);
  std::mt19937 random(3);
  std::vector<std::pair<uint64_t, std::shared_ptr<Collector>>> open;
  for (int n = 0; n < 60; ++n) {
    GenerationRequest request = Ask(1 + static_cast<int64_t>(random() % 200), random() % 4,
                                    1 + static_cast<int64_t>(random() % 30), engine->limits());
    request.n = random() % 5 == 0 ? 3 : 1;
    auto sink = std::make_shared<Collector>(request.n);
    open.emplace_back(engine->Submit(request, sink), sink);
    if (random() % 3 == 0) engine->Cancel(open[random() % open.size()].first);
    if (random() % 7 == 0) open[random() % open.size()].second->Wait();
  }
  for (auto& [id, sink] : open) sink->Wait();
  for (int n = 0; n < 30000 && engine->stats().slots_in_use > 0; ++n)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.slots_in_use, 0);
  EXPECT_EQ(stats.pages_in_use, 0);
  EXPECT_EQ(stats.encoder_rows, stats.decoder_rows + stats.trimmed_rows);
}

}  // namespace
}  // namespace senko::runtime
