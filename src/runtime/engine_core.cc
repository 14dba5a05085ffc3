#include "runtime/engine_core.h"

#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/line_writer.h"

namespace senko::runtime {
namespace {

// How often the runner's thread, which waits for a plan, looks whether the running step has ended.
constexpr std::chrono::microseconds kLook(50);

// Rows of logits held at once: one a sequence, and blocks of a prompt that is to be scored.
int64_t DrawnRows(const EngineOptions& options) { return std::max<int64_t>(options.max_num_seqs, 16); }

engine::SchedulerOptions SchedulingOf(const EngineOptions& options, const LoadedModel& loaded,
                                      const MemoryPlan& memory) {
  engine::SchedulerOptions s;
  s.max_model_len = memory.max_model_len;
  s.max_rows = options.max_num_batched_tokens;
  s.long_prefill_token_threshold = options.long_prefill_token_threshold;
  s.steps_in_flight = options.async_scheduling ? 2 : 1;
  s.prefix_caching = options.enable_prefix_caching;
  s.encoder_replay = options.encoder_replay;
  s.decoder_replay = config::ParseDecoderReplay(options.decoder_replay);
  // One process serves one model: the folder and the arithmetic tell its entries from those of another.
  s.fingerprint = loaded.directory.string() + "|" + options.numerics + "|" + options.decoder_replay +
                  (options.encoder_replay ? "|replay" : "|exact");
  for (const std::string& impl : options.op_impl) s.fingerprint += "|" + impl;
  return s;
}

FinishReason ReasonOf(engine::Finish finish) {
  switch (finish) {
    case engine::Finish::kStop:
      return FinishReason::kStop;
    case engine::Finish::kLength:
      return FinishReason::kLength;
    case engine::Finish::kCancelled:
      return FinishReason::kCancelled;
    default:
      return FinishReason::kError;
  }
}

double ThreadCpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The edge of the engine's threads. What fails here is our own fault, and no state can be trusted behind it: the
// process ends, saying what it was, with the code that tells a supervisor to start it again.
template <typename Loop>
void OrEnd(const Loop& loop) {
  try {
    loop();
  } catch (const std::exception& error) {
    Say(std::string("internal fault in the engine: ") + error.what());
    std::_Exit(1);
  }
}

[[noreturn]] void Refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

void CheckIds(const std::vector<int32_t>& ids, const char* field, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      Refuse(std::string(field) + "[" + std::to_string(i) + "]: token id " + std::to_string(ids[i]) +
             " is outside the vocabulary of " + std::to_string(vocab));
    }
  }
}

}  // namespace

ExecutorLimits EngineCore::StepLimits(const EngineOptions& options, const model::Model& model) {
  ExecutorLimits limits;
  limits.max_rows = options.max_num_batched_tokens;
  limits.max_sequences = options.max_num_seqs;
  limits.max_positions = options.max_model_len > 0 ? options.max_model_len : model.config().max_positions;
  limits.max_drawn_rows = DrawnRows(options);
  return limits;
}

int64_t EngineCore::SnapshotBytes(const EngineOptions& options, int64_t slot_bytes) {
  if (options.encoder_replay || !options.enable_prefix_caching) return 0;
  return options.window_snapshot_memory_bytes.value_or(2 * slot_bytes);
}

EngineCore::EngineCore(const EngineOptions& options, LoadedModel loaded, std::unique_ptr<ThreadPool> pool,
                       std::unique_ptr<Backend> backend, const MemoryPlan& memory)
    : options_(options),
      loaded_(std::move(loaded)),
      pool_(std::move(pool)),
      backend_(std::move(backend)),
      pages_(loaded_.model->page_layout(), memory.num_pages, backend_->memory()),
      slots_(loaded_.model->slot_layout(), memory.num_slots, backend_->memory()),
      snapshots_(loaded_.model->slot_layout(), SnapshotBytes(options, memory.slot_bytes), backend_->memory()),
      executor_(backend_->MakeExecutor(pages_, StepLimits(options, *loaded_.model))),
      runner_(backend_->MakeRunner(*executor_, slots_, snapshots_, *pool_, DrawnRows(options))),
      scheduler_(loaded_.config, SchedulingOf(options, loaded_, memory), pages_, slots_, snapshots_) {
  const config::ModelConfig& config = loaded_.config;
  limits_.vocab_size = config.vocab_size;
  limits_.max_model_len = memory.max_model_len;
  limits_.window = config.window;
  limits_.block_size = options.block_size;
  limits_.max_num_seqs = options.max_num_seqs;
  limits_.max_num_waiting = options.max_num_waiting;
  limits_.max_num_batched_tokens = options.max_num_batched_tokens;
  limits_.num_pages = memory.num_pages;
  limits_.page_bytes = loaded_.model->page_layout().page_bytes;
  limits_.slot_bytes = loaded_.model->slot_layout().slot_bytes;
  limits_.eos_token = static_cast<int32_t>(config.eos_token_id);
  limits_.image_token = static_cast<int32_t>(config.image_token_id);
  stats_.num_pages = memory.num_pages;
  stats_.workspace_bytes = executor_->workspace_bytes() + runner_->bytes();
  planner_ = std::thread([this] { OrEnd([this] { PlanLoop(); }); });
  runner_thread_ = std::thread([this] { OrEnd([this] { RunLoop(); }); });
}

EngineCore::~EngineCore() { Shutdown(); }

void EngineCore::Shutdown() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_planner_.notify_one();
  if (planner_.joinable()) planner_.join();
  if (runner_thread_.joinable()) runner_thread_.join();
}

void EngineCore::Check(const GenerationRequest& request) const {
  const SamplingOptions& s = request.sampling;
  const int64_t vocab = limits_.vocab_size;
  if (request.prompt.empty()) Refuse("prompt: is empty: there is nothing to continue");
  CheckIds(request.prompt, "prompt", vocab);
  if (limits_.image_token >= 0 &&
      std::find(request.prompt.begin(), request.prompt.end(), limits_.image_token) != request.prompt.end()) {
    Refuse("prompt: has the image token " + std::to_string(limits_.image_token) + " but images are not served yet");
  }
  const auto length = static_cast<int64_t>(request.prompt.size());
  // The last token drawn is never fed, so a prompt that is to be scored, not answered, may take all positions.
  if (length > limits_.max_model_len || (length == limits_.max_model_len && s.max_tokens > 1)) {
    Refuse("prompt: has " + std::to_string(length) + " tokens, and with what it is to generate it must stay within " +
           std::to_string(limits_.max_model_len));
  }
  if (request.n < 1 || request.n > kMaxChoices) Refuse("n: must be between 1 and " + std::to_string(kMaxChoices));
  if (s.max_tokens < 1) Refuse("max_tokens: must be at least 1");
  if (s.min_tokens < 0 || s.min_tokens > s.max_tokens) Refuse("min_tokens: must be between 0 and max_tokens");
  auto between = [](float value, float least, float most, const char* name) {
    if (!(value >= least && value <= most)) {
      Refuse(std::string(name) + ": must be between " + std::to_string(least) + " and " + std::to_string(most));
    }
  };
  between(s.temperature, 0, 1000, "temperature");
  if (!(s.top_p > 0 && s.top_p <= 1)) Refuse("top_p: must be above 0 and at most 1");
  between(s.min_p, 0, 1, "min_p");
  if (s.top_k < 0) Refuse("top_k: must not be negative");
  between(s.presence_penalty, -2, 2, "presence_penalty");
  between(s.frequency_penalty, -2, 2, "frequency_penalty");
  if (!(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty))) Refuse("repetition_penalty: must be above 0");
  for (const auto& [id, bias] : s.logit_bias) {
    if (id < 0 || id >= vocab)
      Refuse("logit_bias: token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab));
    if (!std::isfinite(bias)) Refuse("logit_bias: the value for " + std::to_string(id) + " is not finite");
  }
  for (const auto& word : s.bad_words) {
    if (word.empty()) Refuse("bad_words: a word is empty");
    CheckIds(word, "bad_words", vocab);
  }
  CheckIds(s.stop_token_ids, "stop_token_ids", vocab);
  if (s.logprobs < -1 || s.logprobs > kMaxLogprobs)
    Refuse("logprobs: must be between 0 and " + std::to_string(kMaxLogprobs));
  if (s.prompt_logprobs < -1 || s.prompt_logprobs > kMaxLogprobs) {
    Refuse("prompt_logprobs: must be between 0 and " + std::to_string(kMaxLogprobs));
  }
}

uint64_t EngineCore::Submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) {
  Check(request);
  if (!request.sampling.seed) {
    uint64_t seed = 0;  // not std::random_device: making one takes some ten microseconds in a virtual machine
    SENKO_CHECK(getrandom(&seed, sizeof(seed), 0) == static_cast<ssize_t>(sizeof(seed)));
    request.sampling.seed = seed;
  }
  Command command;
  command.submit.open_choices = request.n;
  command.submit.request = std::make_shared<const GenerationRequest>(std::move(request));
  command.submit.sink = std::move(sink);
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) throw Error(ErrorCode::kOverloaded, "the engine is shutting down");
    if (waiting_ >= options_.max_num_waiting) {
      throw Error(ErrorCode::kOverloaded, std::to_string(options_.max_num_waiting) + " requests are waiting already");
    }
    id = next_request_++;
    command.request = command.submit.id = id;
    commands_.push_back(std::move(command));
    ++waiting_;
  }
  wake_planner_.notify_one();
  return id;
}

void EngineCore::Stop(uint64_t request, int choice) {
  Command command;
  command.kind = Command::Kind::kStop;
  command.request = request;
  command.choice = choice;
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  wake_planner_.notify_one();
}

void EngineCore::Cancel(uint64_t request) {
  Command command;
  command.kind = Command::Kind::kCancel;
  command.request = request;
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  wake_planner_.notify_one();
}

EngineStats EngineCore::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting = waiting_;
  return stats;
}

void EngineCore::PlanLoop() {
  std::vector<Command> commands;
  std::vector<Done> done;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_planner_.wait(lock, [&] { return !commands_.empty() || !done_.empty() || stopping_; });
      commands.assign(std::make_move_iterator(commands_.begin()), std::make_move_iterator(commands_.end()));
      commands_.clear();
      done.assign(std::make_move_iterator(done_.begin()), std::make_move_iterator(done_.end()));
      done_.clear();
      if (stopping_ && commands.empty() && done.empty()) {
        lock.unlock();
        while (!requests_.empty()) {
          scheduler_.EndRequest(requests_.begin()->first, engine::Finish::kCancelled);
          Deliver(nullptr);
        }
        if (scheduler_.steps_in_flight() == 0) break;
        lock.lock();
        wake_planner_.wait(lock, [&] { return !done_.empty(); });
        continue;
      }
    }
    for (Command& command : commands) Apply(std::move(command));
    for (Done& one : done) Advance(std::move(one));
    while (auto plan = scheduler_.Plan()) {
      Deliver(nullptr);
      Job job{std::move(*plan), std::exchange(begins_, {})};
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
      wake_runner_.notify_one();
    }
    Deliver(nullptr);
    PublishStats();
  }
  std::lock_guard lock(mutex_);
  planner_gone_ = true;
  wake_runner_.notify_one();
}

// Of this thread and the pool's. What the pool's threads spin between two operators is part of a step; what they spin
// after its last one, before they sleep, is not: whoever measures a step takes the difference over it alone.
double EngineCore::StepCpuSeconds() const { return pool_->WorkerCpuSeconds() + ThreadCpuSeconds(); }

// The next step to launch behind `launched` others. False: there is none, now that the oldest of those has ended, or
// ever.
bool EngineCore::TakeJob(size_t launched, Job* job) {
  std::unique_lock lock(mutex_);
  const auto some = [&] { return !jobs_.empty(); };
  if (launched == 0) {
    wake_runner_.wait(lock, [&] { return some() || planner_gone_; });
  } else if (launched < runner_->most_launched()) {
    // The plan comes while the step before it runs, when what that waited for has been told.
    while (!some()) {
      lock.unlock();
      const bool ended = runner_->Ready();
      lock.lock();
      if (ended) break;
      wake_runner_.wait_for(lock, kLook, some);
    }
  } else {
    return false;
  }
  if (!some()) return false;
  *job = std::move(jobs_.front());
  jobs_.pop_front();
  return true;
}

void EngineCore::RunLoop() {
  std::deque<Launched> launched;  // keeps its plans where they are
  for (;;) {
    Job job;
    if ((launched.empty() || launched.back().error.empty()) && TakeJob(launched.size(), &job)) {
      Launched& step = launched.emplace_back();
      step.job = std::move(job);
      const double before = StepCpuSeconds();
      for (const auto& [sequence, request] : step.job.begins) runner_->Begin(sequence, request);
      try {
        runner_->Launch(step.job.plan);
      } catch (const DeviceLost&) {
        throw;
      } catch (const std::exception& error) {
        step.error = error.what();
        if (step.error.empty()) step.error = "a step could not be launched";
      }
      step.compute_cpu_seconds = StepCpuSeconds() - before;
      continue;
    }
    if (launched.empty()) return;
    Done done = Finish(launched.front());
    launched.pop_front();
    std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
    wake_planner_.notify_one();
  }
}

// What the oldest step gave. Of one that threw the sequences are lost, and nobody else.
EngineCore::Done EngineCore::Finish(const Launched& step) {
  const engine::StepPlan& plan = step.job.plan;
  Done done;
  for (const engine::PlannedSample& sample : plan.samples) done.samples.push_back(sample.sequence);
  done.error = step.error;
  const double before = StepCpuSeconds();
  if (done.error.empty()) {
    try {
      done.output = runner_->Collect();
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {
      done.error = error.what();
      if (done.error.empty()) done.error = "a step failed";
    }
  }
  if (!done.error.empty()) {
    done.output = runner_->Abandon(plan);
    for (const engine::PlannedSpan& span : plan.spans) done.failed.push_back(span.sequence);
    done.failed.insert(done.failed.end(), done.samples.begin(), done.samples.end());
  }
  done.compute_cpu_seconds = step.compute_cpu_seconds + StepCpuSeconds() - before;
  return done;
}

void EngineCore::Apply(Command command) {
  switch (command.kind) {
    case Command::Kind::kSubmit: {
      const GenerationRequest& from = *command.submit.request;
      engine::Request request;
      request.id = command.request;
      request.prompt.ids = from.prompt;
      request.choices = from.n;
      request.priority = from.priority;
      request.cache_salt = from.cache_salt;
      request.max_tokens = from.sampling.max_tokens;
      request.min_tokens = from.sampling.min_tokens;
      request.stop_tokens = from.sampling.stop_token_ids;
      if (!from.sampling.ignore_eos) request.stop_tokens.push_back(limits_.eos_token);
      request.prompt_logits = from.sampling.prompt_logprobs >= 0;
      for (int choice = 0; choice < from.n; ++choice) {
        begins_.emplace_back(engine::SequenceId(command.request, choice), command.submit.request);
      }
      requests_.emplace(command.request, std::move(command.submit));
      scheduler_.Add(std::move(request));
      break;
    }
    case Command::Kind::kStop:
      scheduler_.End(engine::SequenceId(command.request, command.choice), engine::Finish::kStop);
      break;
    case Command::Kind::kCancel:
      scheduler_.EndRequest(command.request, engine::Finish::kCancelled);
      break;
  }
  Deliver(nullptr);
}

void EngineCore::Advance(Done done) {
  for (uint64_t sequence : done.failed) reasons_[sequence] = {done.error};
  for (const PromptScores& scores : done.output.prompts) {
    if (!scores.failed) continue;
    reasons_[scores.sequence] = {std::string(DescribeFailure(DrawFailure::kNotFinite))};
    scheduler_.End(scores.sequence, engine::Finish::kNumerical);
  }
  compute_cpu_seconds_ += done.compute_cpu_seconds;
  model_seconds_ += done.output.model_seconds;
  sampler_seconds_ += done.output.sampler_seconds;
  for (PromptScores& scores : done.output.prompts) {
    const auto found = requests_.find(engine::RequestOf(scores.sequence));
    if (found == requests_.end() || scores.failed) continue;
    Running& r = found->second;
    if (r.prompt_told) continue;
    const size_t prompt = r.request->prompt.size();
    r.prompt_scores.resize(prompt);
    for (size_t i = 0; i < scores.tokens.size(); ++i) {
      r.prompt_scores.at(static_cast<size_t>(scores.first) + i) = std::move(scores.tokens[i]);
    }
    r.prompt_scored = scores.first + static_cast<int64_t>(scores.tokens.size());
    if (r.prompt_scored == static_cast<int64_t>(prompt)) {
      r.prompt_told = true;
      called_.push_back(r.sink);
      r.prompt_scores[0].token = r.request->prompt[0];
      r.sink->OnPromptLogprobs(std::exchange(r.prompt_scores, {}));
    }
  }
  for (size_t i = 0; i < done.output.draws.size(); ++i) {
    const DrawFailure failure = done.output.draws[i].failure;
    if (failure == DrawFailure::kNone) continue;
    reasons_[done.samples[i]] = {std::string(DescribeFailure(failure)), failure == DrawFailure::kNothingAllowed};
  }
  scheduler_.Advance(done.output.result);
  Deliver(&done);
  reasons_.clear();
}

void EngineCore::Deliver(const Done* done) {
  const std::vector<engine::Event> events = scheduler_.TakeEvents();
  for (size_t i = 0; i < events.size(); ++i) {
    const engine::Event& event = events[i];
    const auto found = requests_.find(engine::RequestOf(event.sequence));
    SENKO_CHECK(found != requests_.end());
    Running& r = found->second;
    if (called_.empty() || called_.back() != r.sink) called_.push_back(r.sink);
    OutputChunk chunk;
    chunk.choice = engine::ChoiceOf(event.sequence);
    const engine::Event* end = event.kind == engine::Event::Kind::kFinished ? &event : nullptr;
    if (event.kind == engine::Event::Kind::kScheduled) {
      EndWaiting(r);
      RequestUsage usage;
      usage.prompt_tokens = static_cast<int64_t>(r.request->prompt.size());
      usage.cached_tokens = event.cached_tokens;
      if (chunk.choice == 0 || event.resumed) r.sink->OnScheduled(usage, event.resumed);
      continue;
    }
    if (event.kind == engine::Event::Kind::kToken) {
      chunk.tokens.push_back(done->output.draws[static_cast<size_t>(event.sample)].output);
      // A token that ends its choice comes in the chunk that says so: only there can it be told from text.
      const bool ends = i + 1 < events.size() && events[i + 1].sequence == event.sequence &&
                        events[i + 1].kind == engine::Event::Kind::kFinished;
      if (ends) end = &events[++i];
    }
    const std::shared_ptr<OutputSink> sink = r.sink;
    if (end != nullptr) {
      chunk.finish = ReasonOf(end->finish);
      if (end->finish == engine::Finish::kStop && done != nullptr) chunk.stop_token = end->token;
      if (chunk.finish == FinishReason::kError) {
        // Choices whose prompt failed end with the first one, which computes it; one that goes on from a step which
        // failed is not named by that step.
        auto reason = reasons_.find(end->sequence);
        if (reason == reasons_.end()) {
          reason = reasons_.find(engine::SequenceId(engine::RequestOf(end->sequence), 0));
        }
        if (reason != reasons_.end()) {
          chunk.error = reason->second.text;
          chunk.request_fault = reason->second.request_fault;
        } else if (done != nullptr) {
          chunk.error = done->error;
        }
      }
      if (--r.open_choices == 0) {
        EndWaiting(r);
        requests_.erase(found);
      }
    }
    sink->OnOutput(std::move(chunk));
  }
  for (const std::shared_ptr<OutputSink>& sink : called_) sink->OnStepDelivered();
  called_.clear();
}

// Has run, or never will.
void EngineCore::EndWaiting(Running& request) {
  if (!std::exchange(request.waits, false)) return;
  std::lock_guard lock(mutex_);
  --waiting_;
}

void EngineCore::PublishStats() {
  const engine::SchedulerStats& s = scheduler_.stats();
  std::lock_guard lock(mutex_);
  stats_.running = scheduler_.running();
  stats_.pages_in_use = pages_.num_pages() - pages_.free_pages();
  stats_.pages_cached = pages_.remembered_free_pages();
  stats_.slots_in_use = slots_.num_slots() - slots_.free_slots();
  stats_.steps = s.steps;
  stats_.preemptions = s.preemptions;
  stats_.prompt_tokens = s.prompt_tokens;
  stats_.generation_tokens = s.committed_tokens;
  stats_.prefix_queries = s.prefix_queries;
  stats_.prefix_hits = s.prefix_hits;
  stats_.replayed_tokens = s.replayed_rows;
  stats_.trimmed_rows = s.trimmed_rows;
  stats_.encoder_rows = s.encoder_rows;
  stats_.decoder_rows = s.decoder_rows;
  stats_.model_seconds = model_seconds_;
  stats_.sampler_seconds = sampler_seconds_;
  stats_.compute_cpu_seconds = compute_cpu_seconds_;
}

}  // namespace senko::runtime
