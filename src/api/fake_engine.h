// An engine that recites scripts, for tests: no model, the engine's contract.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "senko/senko.h"

namespace senko::api {

// What one choice says. The answer ends with EOS, at max_tokens, or at a stop token.
struct FakeScript {
  std::vector<int32_t> tokens;
  size_t chunk = 1;            // tokens delivered at once
  bool eos_apart = false;      // EOS, or the end by length, comes in a chunk of its own
  bool fails = false;          // kError behind the tokens, also for a choice that was stopped: its rows may run ahead
  bool request_fault = false;  // of that error
};

// Delivers on its own thread, all running requests in turn, a chunk of each choice at a time.
class FakeEngine : public Engine {
 public:
  explicit FakeEngine(EngineLimits limits) : limits_(limits), thread_([this] { Run(); }) {}
  ~FakeEngine() override { Shutdown(); }

  // Called at Submit, for every choice.
  std::function<FakeScript(const GenerationRequest&, int choice)> script;
  std::function<void(const GenerationRequest&)> on_submit;  // may throw
  std::function<void()> on_cancel;                          // may throw
  int64_t cached_tokens = 0;

  uint64_t Submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) override {
    if (on_submit) on_submit(request);
    Running running;
    running.sink = std::move(sink);
    for (int i = 0; i < request.n; ++i) running.choices.push_back({script ? script(request, i) : FakeScript{}});
    running.request = request;
    const std::lock_guard lock(mutex_);
    if (stopping_) throw Error(ErrorCode::kOverloaded, "the engine is shutting down");
    running.handle = ++next_;
    submitted_.push_back(std::move(request));
    running_.push_back(std::move(running));
    wake_.notify_all();
    return next_;
  }
  void Stop(uint64_t request, int choice) override {
    const std::lock_guard lock(mutex_);
    stopped_.insert({request, choice});
  }
  void Cancel(uint64_t request) override {
    if (on_cancel) on_cancel();
    const std::lock_guard lock(mutex_);
    cancelled_.insert(request);
    wake_.notify_all();
  }
  void Shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      held_ = false;
      wake_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  const EngineLimits& limits() const override { return limits_; }
  EngineStats stats() const override { return {}; }

  // While held, nothing is delivered but the ends of cancelled requests.
  void Hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    wake_.notify_all();
  }
  // Waits until nothing runs.
  bool Idle() {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, std::chrono::seconds(20), [&] { return running_.empty() && !busy_; });
  }
  std::vector<GenerationRequest> submitted() {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  std::set<uint64_t> cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  std::set<std::pair<uint64_t, int>> stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  // A number for every (token, alternative), so that answers can be checked.
  static float Logprob(int32_t token, int64_t rank) {
    return -0.125f * static_cast<float>(token % 7) - static_cast<float>(rank);
  }

 private:
  struct Choice {
    FakeScript script;
    size_t at = 0;
    bool done = false;
  };
  struct Running {
    uint64_t handle = 0;
    GenerationRequest request;
    std::shared_ptr<OutputSink> sink;
    std::vector<Choice> choices;
    bool scheduled = false;
  };

  TokenOutput MakeToken(int32_t token, int logprobs) const {
    TokenOutput out;
    out.token = token;
    if (logprobs < 0) return out;
    out.logprob = TokenLogprob{token, Logprob(token, 0), 1};
    for (int k = 0; k < logprobs; ++k) {
      const auto other = static_cast<int32_t>((token + k) % limits_.vocab_size);
      out.top.push_back({other, Logprob(other, k), k + 1});
    }
    return out;
  }

  OutputChunk Next(Running* running, size_t index, bool cancelled, bool stopped) {
    Choice& choice = running->choices[index];
    const SamplingOptions& sampling = running->request.sampling;
    OutputChunk chunk;
    chunk.choice = static_cast<int>(index);
    if (cancelled || (stopped && !choice.script.fails)) {
      chunk.finish = cancelled ? FinishReason::kCancelled : FinishReason::kStop;
      return chunk;
    }
    for (size_t i = 0; i < choice.script.chunk && !chunk.finish; ++i) {
      if (static_cast<int64_t>(choice.at) == sampling.max_tokens) {
        chunk.finish = FinishReason::kLength;
      } else if (choice.at == choice.script.tokens.size()) {
        if (choice.script.fails) {
          chunk.finish = FinishReason::kError;
          chunk.request_fault = choice.script.request_fault;
          chunk.error = chunk.request_fault ? "min_tokens and bad_words bar every token" : "a page went missing";
          break;
        }
        if (choice.script.eos_apart && !chunk.tokens.empty()) break;
        chunk.tokens.push_back(MakeToken(limits_.eos_token, sampling.logprobs));
        chunk.finish = FinishReason::kStop;
        chunk.stop_token = limits_.eos_token;
      } else {
        const int32_t token = choice.script.tokens[choice.at++];
        chunk.tokens.push_back(MakeToken(token, sampling.logprobs));
        for (const int32_t stop : sampling.stop_token_ids) {
          if (token != stop || static_cast<int64_t>(choice.at) <= sampling.min_tokens) continue;
          chunk.finish = FinishReason::kStop;
          chunk.stop_token = token;
        }
        if (!chunk.finish && !choice.script.eos_apart && static_cast<int64_t>(choice.at) == sampling.max_tokens) {
          chunk.finish = FinishReason::kLength;
        }
      }
    }
    return chunk;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (size_t turn = 0;; ++turn) {
      const auto ready = [&] {
        if (stopping_) return true;
        for (const Running& running : running_) {
          if (!held_ || cancelled_.contains(running.handle)) return true;
        }
        return false;
      };
      wake_.wait(lock, ready);
      if (running_.empty()) return;  // stopping
      Running running = std::move(running_.front());
      running_.pop_front();
      busy_ = true;
      const bool cancelled = stopping_ || cancelled_.contains(running.handle);
      if (held_ && !cancelled) {
        running_.push_back(std::move(running));
        busy_ = false;
        continue;
      }
      std::vector<bool> stopped;
      for (size_t i = 0; i < running.choices.size(); ++i) {
        stopped.push_back(stopped_.contains({running.handle, static_cast<int>(i)}));
      }
      lock.unlock();
      if (!running.scheduled && !cancelled) {
        running.scheduled = true;
        running.sink->OnScheduled({static_cast<int64_t>(running.request.prompt.size()), cached_tokens}, false);
        if (running.request.sampling.prompt_logprobs >= 0) {
          std::vector<TokenOutput> prompt;
          for (const int32_t token : running.request.prompt) {
            prompt.push_back(MakeToken(token, prompt.empty() ? -1 : running.request.sampling.prompt_logprobs));
          }
          running.sink->OnPromptLogprobs(std::move(prompt));
        }
      }
      bool done = true;
      for (size_t i = 0; i < running.choices.size(); ++i) {
        if (running.choices[i].done) continue;
        OutputChunk chunk = Next(&running, i, cancelled, stopped[i]);
        running.choices[i].done = chunk.finish.has_value();
        done &= running.choices[i].done;
        running.sink->OnOutput(std::move(chunk));
      }
      running.sink->OnStepDelivered();
      if (done) running.sink.reset();
      lock.lock();
      if (!done) running_.push_back(std::move(running));
      busy_ = false;
      if (running_.empty()) idle_.notify_all();
    }
  }

  EngineLimits limits_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Running> running_;
  std::vector<GenerationRequest> submitted_;
  std::set<std::pair<uint64_t, int>> stopped_;
  std::set<uint64_t> cancelled_;
  uint64_t next_ = 0;
  bool stopping_ = false;
  bool held_ = false;
  bool busy_ = false;   // a request is in the thread's hands
  std::thread thread_;  // last: it uses the rest
};

}  // namespace senko::api
