// A client of the engine for tests: it keeps all that a request delivers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "runtime/test_models.h"
#include "senko/senko.h"

namespace senko::runtime {

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

inline EngineOptions TestEngineOptions(const std::string& config, bool exact = false) {
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

inline GenerationRequest Ask(int64_t length, uint64_t seed, int64_t max_tokens, const EngineLimits& limits) {
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

inline std::shared_ptr<Collector> Submit(Engine& engine, const GenerationRequest& request) {
  auto sink = std::make_shared<Collector>(request.n);
  engine.Submit(request, sink);
  return sink;
}

}  // namespace senko::runtime
