// The engine behind the public header, on real (random) models: what a client gets is what one sequence alone gives.
#include "runtime/engine_core.h"

#include <gtest/gtest.h>

#include <string>

#include "ops/sample/sample.h"
#include "runtime/cpu_executor.h"
#include "runtime/engine_test_client.h"
#include "runtime/generate.h"

namespace senko::runtime {
namespace {

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
    const EngineOptions options = TestEngineOptions("mini10", exact);
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
  EngineOptions options = TestEngineOptions("mini10");
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
  EngineOptions options = TestEngineOptions("mini10", true);
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
  const EngineOptions options = TestEngineOptions("mini10");
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
  const auto engine = LoadEngine(TestEngineOptions("mini10"));
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
  const auto engine = LoadEngine(TestEngineOptions("mini10"));
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
  const auto engine = LoadEngine(TestEngineOptions("mini10"));
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
  EngineOptions options = TestEngineOptions("mini10");
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

TEST(EngineCore, EosAndStopTokensEndAndAreNamed) {
  const auto engine = LoadEngine(TestEngineOptions("mini10"));
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
  EngineOptions options = TestEngineOptions("mini10");
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

}  // namespace
}  // namespace senko::runtime
