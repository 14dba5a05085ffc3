// Many sequences at once through the engine under replay, each held to a dense computation of its own history: its
// prompt's length, its hits, and what those who wrote the adopted pages had seen. Tokens and logprobs in every bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/random.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/sample.h"
#include "runtime/dense_oracle.h"
#include "runtime/load.h"
#include "runtime/test_models.h"
#include "senko/senko.h"

namespace senko::runtime {
namespace {

constexpr int64_t kBlock = 64, kWindow = 8;

// Between two admissions: what was adopted, and the first token that was drawn then.
struct Stay {
  int64_t hit = 0;
  size_t first = 0;
};

class Recorder : public OutputSink {
 public:
  explicit Recorder(int n) : tokens(static_cast<size_t>(n)), open_(n) {}
  // Nobody who still waits for a token is admitted again, so the tokens of a stay come before the next one.
  void OnScheduled(const RequestUsage& usage, bool /*resumed*/) override {
    std::lock_guard lock(mutex_);
    stays.push_back({usage.cached_tokens, tokens[0].size()});
    changed_.notify_all();
  }
  void OnPromptLogprobs(std::vector<TokenOutput> /*prompt*/) override {}
  void OnOutput(OutputChunk chunk) override {
    std::lock_guard lock(mutex_);
    auto& choice = tokens.at(static_cast<size_t>(chunk.choice));
    for (TokenOutput& token : chunk.tokens) choice.push_back(std::move(token));
    if (chunk.finish) {
      finish = *chunk.finish;
      --open_;
    }
    changed_.notify_all();
  }
  void Wait() {
    WaitFor([&] { return open_ == 0; });
  }
  void WaitForTokens(size_t count) {
    WaitFor([&] { return tokens[0].size() >= count; });
  }
  void WaitUntilScheduled() {
    WaitFor([&] { return !stays.empty(); });
  }

  // To be read when all choices have ended.
  std::vector<std::vector<TokenOutput>> tokens;
  std::vector<Stay> stays;
  FinishReason finish = FinishReason::kError;  // of the last choice that ended

 private:
  template <typename Condition>
  void WaitFor(Condition condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::minutes(10), condition));
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_;
};

struct Asked {
  GenerationRequest request;
  std::shared_ptr<Recorder> sink;
  uint64_t handle = 0;
};

class EngineReplay : public testing::Test {
 protected:
  // Ratios 2 and 1, entries from the first layer on, Engram that looks back.
  EngineReplay() : options_(Options()), loaded_(Load(options_)) {}

  static EngineOptions Options() {
    EngineOptions options;
    options.model = TestModelWithWindow("engram_first", kWindow).string();
    options.op_impl = ReferenceOps();
    options.threads = 2;
    options.block_size = kBlock;
    options.max_num_seqs = 12;
    options.max_num_batched_tokens = 40;
    options.kv_cache_memory_bytes = int64_t{24} << 20;
    return options;
  }
  static LoadedModel Load(const EngineOptions& options) {
    LoadOptions load;
    load.directory = options.model;
    load.block_size = options.block_size;
    load.op_impl = options.op_impl;
    return LoadModel(load);
  }

  std::vector<int32_t> Words(int64_t count, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
      ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(loaded_.config.vocab_size - 1)));
    }
    return ids;
  }

  static Asked Ask(Engine& engine, std::vector<int32_t> prompt, int64_t max_tokens, int n = 1) {
    Asked asked;
    asked.request.prompt = std::move(prompt);
    asked.request.n = n;
    asked.request.sampling.max_tokens = max_tokens;
    asked.request.sampling.ignore_eos = true;
    asked.request.sampling.seed = 90 + asked.request.prompt.size();
    asked.request.sampling.logprobs = kMaxLogprobs;
    asked.sink = std::make_shared<Recorder>(n);
    asked.handle = engine.Submit(asked.request, asked.sink);
    return asked;
  }

  // Every token of the choice. `pages` are those that its first stay may have adopted; afterwards those that others may
  // adopt from it.
  void Check(const Asked& asked, int choice, std::vector<uint8_t>* pages) const {
    const std::vector<TokenOutput>& drawn = asked.sink->tokens[static_cast<size_t>(choice)];
    const std::vector<Stay>& stays = asked.sink->stays;
    const std::vector<int32_t>& prompt = asked.request.prompt;
    const auto length = static_cast<int64_t>(prompt.size());
    for (size_t k = 0; k < stays.size(); ++k) {
      const Stay& stay = stays[k];
      const size_t end = k + 1 < stays.size() ? stays[k + 1].first : drawn.size();
      std::vector<int32_t> tokens(prompt);
      for (size_t t = 0; t < end; ++t) tokens.push_back(drawn[t].token);
      const auto adopted = static_cast<size_t>(stay.hit / kBlock * loaded_.model->page_layout().page_bytes);
      ASSERT_EQ(stay.hit % kBlock, 0);
      ASSERT_LE(adopted, pages->size());
      DenseInput input;
      input.tokens = tokens;
      input.prompt_tokens = length;
      input.hit = stay.hit;
      input.adopted = std::span(*pages).first(adopted);
      DenseOutput dense = RunDense(*loaded_.model, input);
      for (size_t t = stay.first; t < end; ++t) {
        const int64_t position = length + static_cast<int64_t>(t);
        const auto row = dense.logits.find(position - 1);
        ASSERT_TRUE(row != dense.logits.end());
        SCOPED_TRACE("prompt of " + std::to_string(length) + ", choice " + std::to_string(choice) + ", stay " +
                     std::to_string(k) + " with a hit of " + std::to_string(stay.hit) + ", token " + std::to_string(t));
        ExpectDraw(drawn[t], row->second, *asked.request.sampling.seed, choice, position);
        if (HasFailure()) return;
      }
      *pages = std::move(dense.pages);
    }
  }

  static void ExpectDraw(const TokenOutput& drawn, const std::vector<float>& logits, uint64_t seed, int choice,
                         int64_t position) {
    ops::SampleParams sample;
    sample.vocab = static_cast<int64_t>(logits.size());
    sample.logits = logits.data();
    sample.temperature = 1;
    sample.seed = seed;
    sample.choice = static_cast<uint64_t>(choice);
    sample.position = static_cast<uint64_t>(position);
    ASSERT_EQ(drawn.token, ops::SampleReference(sample));
    ops::LogprobEntry own;
    std::array<ops::LogprobEntry, kMaxLogprobs> top;
    ASSERT_TRUE(ops::LogprobsCpu({sample.vocab, logits.data(), drawn.token, &own, top}));
    ASSERT_EQ(drawn.logprob->logprob, own.logprob);
    ASSERT_EQ(drawn.top.size(), top.size());
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(drawn.top[i].token, top[i].token);
      ASSERT_EQ(drawn.top[i].logprob, top[i].logprob);
    }
  }

  // Of a request with one choice that met an empty cache.
  std::vector<uint8_t> CheckCold(const Asked& asked) const {
    EXPECT_EQ(asked.sink->stays[0].hit, 0);
    std::vector<uint8_t> pages;
    Check(asked, 0, &pages);
    return pages;
  }

  // Of a request that adopts `hit` tokens of the writer's.
  void CheckHit(const Asked& asked, int64_t hit, std::vector<uint8_t> writer) const {
    ASSERT_EQ(asked.sink->stays.size(), 1u);
    EXPECT_EQ(asked.sink->stays[0].hit, hit);
    for (int choice = 0; choice < asked.request.n; ++choice) {
      std::vector<uint8_t> pages(writer);
      Check(asked, choice, &pages);
    }
  }

  const EngineOptions options_;
  const LoadedModel loaded_;
};

std::vector<int32_t> Join(std::vector<int32_t> head, size_t keep, const std::vector<int32_t>& tail) {
  head.resize(keep);
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

// Different hits, cold prompts, choices and clients that leave, all in the same steps; then hits on what those who left
// had written.
TEST_F(EngineReplay, EverySequenceOfABatchIsItsOwnHistory) {
  const auto engine = LoadEngine(options_);
  const auto a = Words(70, 1), b = Words(131, 2), c = Words(128, 3);
  std::vector<Asked> writers;
  for (const auto& prompt : {a, b, c}) writers.push_back(Ask(*engine, prompt, 2));
  for (const Asked& writer : writers) writer.sink->Wait();

  const Asked leaves = Ask(*engine, Words(100, 4), 300);
  const Asked one_more = Ask(*engine, Join(a, 64, Words(1, 11)), 4);
  const Asked window_more = Ask(*engine, Join(b, 128, Words(kWindow, 12)), 3);
  const Asked choices = Ask(*engine, Join(b, 128, Words(33, 13)), 3, 3);
  const Asked whole_pages = Ask(*engine, c, 3);
  const Asked single = Ask(*engine, Words(1, 14), 4);
  const Asked cold_choices = Ask(*engine, Words(17, 15), 3, 2);
  const Asked leaves_early = Ask(*engine, Join(a, 64, Words(75, 16)), 300);
  leaves_early.sink->WaitUntilScheduled();
  engine->Cancel(leaves_early.handle);
  leaves.sink->WaitForTokens(3);
  engine->Cancel(leaves.handle);
  for (const Asked* asked :
       {&leaves, &one_more, &window_more, &choices, &whole_pages, &single, &cold_choices, &leaves_early}) {
    asked->sink->Wait();
  }
  EXPECT_EQ(leaves.sink->finish, FinishReason::kCancelled);
  EXPECT_EQ(leaves_early.sink->finish, FinishReason::kCancelled);
  const Asked back = Ask(*engine, leaves.request.prompt, 3), back_early = Ask(*engine, leaves_early.request.prompt, 3);
  back.sink->Wait();
  back_early.sink->Wait();

  std::vector<std::vector<uint8_t>> wrote;
  for (const Asked& writer : writers) wrote.push_back(CheckCold(writer));
  CheckHit(one_more, 64, wrote[0]);
  CheckHit(window_more, 128, wrote[1]);
  CheckHit(choices, 128, wrote[1]);
  CheckHit(whole_pages, 64, wrote[2]);
  CheckHit(single, 0, {});
  CheckHit(cold_choices, 0, {});
  CheckHit(back, 64, CheckCold(leaves));
  std::vector<uint8_t> early(wrote[0]);
  Check(leaves_early, 0, &early);
  CheckHit(back_early, back_early.sink->stays[0].hit, early);
  EXPECT_GE(back_early.sink->stays[0].hit, 64);
}

// Three sequences that end with three pages each in a pool of five: they give way, come back with a hit on what they
// wrote themselves, and go on.
TEST_F(EngineReplay, WhoWasPreemptedGoesOnFromItsOwnPages) {
  EngineOptions options = options_;
  options.max_num_seqs = 4;
  options.max_model_len = 3 * kBlock;
  options.kv_cache_memory_bytes =
      4 * loaded_.model->slot_layout().slot_bytes + 5 * loaded_.model->page_layout().page_bytes;
  const auto engine = LoadEngine(options);
  std::vector<Asked> asked;
  for (uint64_t seed = 1; seed <= 3; ++seed) asked.push_back(Ask(*engine, Words(60, seed), 72));
  size_t stays = 0, hits = 0;
  for (const Asked& one : asked) {
    one.sink->Wait();
    EXPECT_EQ(one.sink->finish, FinishReason::kLength);
    std::vector<uint8_t> pages;
    Check(one, 0, &pages);
    stays += one.sink->stays.size();
    for (const Stay& stay : one.sink->stays) hits += stay.hit > 0;
  }
  EXPECT_GT(engine->stats().preemptions, 0u);
  EXPECT_GT(stays, asked.size());
  EXPECT_GT(hits, 0u);
}

}  // namespace
}  // namespace senko::runtime
