#include "runtime/cuda/cuda_step_runner.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cuda/check.h"
#include "ops/sample/draw_scheme.h"

namespace senko::runtime {
namespace {

// A thread that waits looks all the time at first, then now and then: another step is queued behind this one.
constexpr std::chrono::microseconds kSpin(50), kNap(20);

TokenLogprob LogprobOf(const ops::LogprobEntry& entry) { return {entry.token, entry.logprob, entry.rank}; }

double Seconds(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  SENKO_CUDA(cudaEventElapsedTime(&ms, begin, end));
  return ms * 1e-3;
}

}  // namespace

CudaStepRunner::CudaStepRunner(CudaExecutor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots,
                               ThreadPool& pool, int64_t max_drawn_rows, std::chrono::milliseconds patience)
    : HostStepRunner(executor, slots, snapshots, pool, max_drawn_rows),
      gpu_(executor),
      patience_(patience),
      tables_(static_cast<size_t>(executor.draws().limits().num_tables)) {
  const auto draws = static_cast<size_t>(gpu_.draws().limits().max_draws);
  for (Results& r : results_) {
    SENKO_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&r.tokens), draws * sizeof(*r.tokens), cudaHostAllocDefault));
    SENKO_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&r.draws), draws * sizeof(*r.draws), cudaHostAllocDefault));
    for (cudaEvent_t* event : {&r.begun, &r.computed, &r.drawn}) SENKO_CUDA(cudaEventCreate(event));
    SENKO_CUDA(cudaEventCreateWithFlags(&r.done, cudaEventDisableTiming));
  }
}

CudaStepRunner::~CudaStepRunner() {
  cudaStreamSynchronize(gpu_.stream());  // it writes into the results
  for (const Results& r : results_) {
    for (cudaEvent_t event : {r.begun, r.computed, r.drawn, r.done}) cudaEventDestroy(event);
    cudaFreeHost(r.tokens);
    cudaFreeHost(r.draws);
  }
}

void CudaStepRunner::End(uint64_t sequence) {
  HostStepRunner::End(sequence);
  const auto found = table_of_.find(sequence);
  if (found == table_of_.end()) return;
  tables_[found->second].sequence.reset();
  table_of_.erase(found);
}

// Says which step it was, and whether another one can be run at all.
void CudaStepRunner::Fail(uint64_t step, const std::exception& error) {
  const std::string what = "step " + std::to_string(step) + " on the GPU: " + error.what();
  (void)cudaGetLastError();
  const cudaError_t status = cudaStreamQuery(gpu_.stream());
  if (status != cudaSuccess && status != cudaErrorNotReady) {
    throw DeviceLost(what + "; this process can run nothing more on the GPU (" + cudaGetErrorString(status) + ")");
  }
  throw std::runtime_error(what);
}

std::vector<DrawTerms> CudaStepRunner::TermsOf(const engine::StepPlan& plan) const {
  std::vector<DrawTerms> terms;
  for (const engine::PlannedSample& sample : plan.samples) {
    terms.push_back(sampler_.Terms(sample.sequence, sample.position));
  }
  return terms;
}

bool CudaStepRunner::NeedsHost(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms) const {
  for (const engine::PlannedSpan& span : plan.spans) {
    if (span.drafts > 0 || WantsPromptScores(span)) return true;
  }
  const DeviceDrawLimits& limits = gpu_.draws().limits();
  const auto penalised = std::count_if(terms.begin(), terms.end(), [](const DrawTerms& t) { return t.penalises; });
  return static_cast<int64_t>(terms.size()) > limits.max_draws || penalised > limits.num_tables;
}

// Whether the host must know tokens that are still in flight. Bad words of several tokens are matched here; and an
// answer whose counts are on the GPU no longer, or not yet (a choice that came in late, one behind a step that was
// drawn on the CPU), is counted again from what the host has. Both wait for the steps launched before.
bool CudaStepRunner::NeedsTokens(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms) const {
  for (size_t i = 0; i < terms.size(); ++i) {
    const DrawTerms& t = terms[i];
    if (t.unknown == 0) continue;
    if (t.has_longer_bad_words) return true;
    const auto table = table_of_.find(plan.samples[i].sequence);
    if (table == table_of_.end() || tables_[table->second].counted != t.drawn) return true;
  }
  return false;
}

// But for penalties.
StepDraws CudaStepRunner::DrawsOf(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms) const {
  StepDraws draws;
  const std::vector<int64_t> rows = RowsOfSamples(plan, &draws.rows);
  for (size_t i = 0; i < terms.size(); ++i) {
    const engine::PlannedSample& sample = plan.samples[i];
    const SamplingOptions& o = *terms[i].options;
    ops::SampleJobSm90 job;
    job.row =
        static_cast<int32_t>(std::lower_bound(draws.rows.begin(), draws.rows.end(), rows[i]) - draws.rows.begin());
    job.temperature = o.temperature;
    job.top_k = o.top_k;
    job.top_p = o.top_p;
    job.least_exponent = ops::LeastExponent(o.min_p);
    job.seed = terms[i].seed;
    job.choice = terms[i].choice;
    job.position = static_cast<uint64_t>(sample.position + 1);
    job.bias_begin = static_cast<int32_t>(draws.bias_ids.size());
    job.bias_count = static_cast<int32_t>(o.logit_bias.size());
    for (const auto& [token, bias] : o.logit_bias) {
      draws.bias_ids.push_back(token);
      draws.bias_values.push_back(bias);
    }
    job.banned_begin = static_cast<int32_t>(draws.banned_ids.size());
    sampler_.AppendBarred(sample.sequence, sample.position, &draws.banned_ids);
    job.banned_count = static_cast<int32_t>(draws.banned_ids.size()) - job.banned_begin;
    job.top_logprobs = o.logprobs;
    draws.jobs.push_back(job);
  }
  return draws;
}

// One that no draw of this step uses; there are as many as a step may have penalised draws.
size_t CudaStepRunner::TakeTable(uint64_t step) {
  const auto order = [](const Table& t) { return t.sequence ? t.step + 1 : 0; };
  const auto table = std::min_element(tables_.begin(), tables_.end(),
                                      [&](const Table& a, const Table& b) { return order(a) < order(b); });
  SENKO_CHECK(table != tables_.end() && (!table->sequence || table->step != step));
  if (table->sequence) table_of_.erase(*table->sequence);
  return static_cast<size_t>(table - tables_.begin());
}

// In the stream's order: what is launched already counts in what the table held. Copies from pageable memory have taken
// their source when they return.
void CudaStepRunner::FillTable(size_t index, const DrawTerms& terms) {
  const auto vocab = static_cast<size_t>(gpu_.model().config().vocab_size);
  uint16_t* table = gpu_.draws().table(static_cast<int64_t>(index));
  if (terms.drawn == 0) {
    SENKO_CUDA(cudaMemsetAsync(table, 0, vocab * sizeof(uint16_t), gpu_.stream()));
  } else {
    SENKO_CHECK(terms.unknown == 0);
    std::vector<uint16_t> counts(vocab);
    for (const ops::OutputCount& c : terms.committed) {
      counts[static_cast<size_t>(c.token)] = static_cast<uint16_t>(std::min(c.count, 0xFFFF));
    }
    SENKO_CUDA(cudaMemcpyAsync(table, counts.data(), vocab * sizeof(uint16_t), cudaMemcpyHostToDevice, gpu_.stream()));
  }
  if (terms.options->repetition_penalty == 1) return;
  std::vector<uint32_t> bits((vocab + 31) / 32);
  for (const int32_t token : terms.prompt_ids) bits[static_cast<size_t>(token / 32)] |= uint32_t{1} << (token % 32);
  SENKO_CUDA(cudaMemcpyAsync(gpu_.draws().prompt_bits(static_cast<int64_t>(index)), bits.data(),
                             bits.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, gpu_.stream()));
}

void CudaStepRunner::AddTables(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms, StepDraws* draws) {
  const auto counts = [&](size_t i) { return terms[i].penalises && !terms[i].failed; };
  // First those that have one, so that nobody takes it.
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto found = table_of_.find(plan.samples[i].sequence);
    if (counts(i) && found != table_of_.end()) tables_[found->second].step = plan.step;
  }
  for (size_t i = 0; i < terms.size(); ++i) {
    if (!counts(i)) continue;
    const uint64_t sequence = plan.samples[i].sequence;
    const auto found = table_of_.find(sequence);
    const size_t index = found != table_of_.end() ? found->second : TakeTable(plan.step);
    Table& table = tables_[index];
    if (found == table_of_.end() || table.counted != terms[i].drawn) FillTable(index, terms[i]);
    table = {sequence, terms[i].drawn + 1, plan.step};
    table_of_[sequence] = index;
    const SamplingOptions& o = *terms[i].options;
    ops::SampleJobSm90& job = draws->jobs[i];
    job.repetition = o.repetition_penalty;
    job.frequency = o.frequency_penalty;
    job.presence = o.presence_penalty;
    job.counts = gpu_.draws().table(static_cast<int64_t>(index));
    if (o.repetition_penalty != 1) job.in_prompt = gpu_.draws().prompt_bits(static_cast<int64_t>(index));
  }
}

void CudaStepRunner::Launch(const engine::StepPlan& plan) {
  SENKO_CHECK(launched_.size() < kMostLaunched);
  SENKO_CHECK(launched_.empty() || launched_.back().plan->step + 1 == plan.step);
  try {
    LaunchStep(plan);
  } catch (const DeviceLost&) {
    throw;
  } catch (const std::exception& error) {
    Fail(plan.step, error);
  }
}

void CudaStepRunner::LaunchStep(const engine::StepPlan& plan) {
  Step step;
  step.plan = &plan;
  if (plan.spans.empty()) {
    SENKO_CHECK(plan.samples.empty() && plan.copy_pages.empty() && plan.copy_slots.empty());
    launched_.push_back(std::move(step));
    return;
  }
  if (overdue_) {  // whose copies this step would wait for, without end
    if (cudaEventQuery(results_[overdue_->results].done) == cudaErrorNotReady) {
      throw std::runtime_error("the GPU still runs a step that was given up");
    }
    overdue_.reset();
  }
  std::vector<DrawTerms> terms = TermsOf(plan);
  if (NeedsHost(plan, terms)) return RunWaiting(plan);
  if (NeedsTokens(plan, terms)) {
    CollectAll();
    terms = TermsOf(plan);
  }
  inputs_.Fill(plan, slots_, !launched_.empty() && launched_.back().in_flight());
  StepDraws draws = DrawsOf(plan, terms);
  const auto most_listed = static_cast<size_t>(gpu_.draws().limits().max_listed);
  if (std::max(draws.bias_ids.size(), draws.banned_ids.size()) > most_listed) return RunWaiting(plan);

  cudaStream_t stream = gpu_.stream();
  step.results = next_results_;
  const Results& r = results_[step.results];
  CopyBefore(plan);
  AddTables(plan, terms, &draws);
  gpu_.LaunchPasses(inputs_.inputs(), draws, r.begun);
  SENKO_CUDA(cudaEventRecord(r.computed, stream));
  gpu_.LaunchDraws();
  SENKO_CUDA(cudaEventRecord(r.drawn, stream));
  if (!draws.jobs.empty()) {
    SENKO_CUDA(cudaMemcpyAsync(r.tokens, gpu_.draws().tokens(), draws.jobs.size() * sizeof(*r.tokens),
                               cudaMemcpyDeviceToHost, stream));
  }
  if (std::any_of(draws.jobs.begin(), draws.jobs.end(), [](const auto& job) { return job.top_logprobs >= 0; })) {
    SENKO_CUDA(cudaMemcpyAsync(r.draws, gpu_.draws().results(), draws.jobs.size() * sizeof(*r.draws),
                               cudaMemcpyDeviceToHost, stream));
  }
  SENKO_CUDA(cudaEventRecord(r.done, stream));
  CopyBehind(plan);
  next_results_ = 1 - next_results_;
  launched_.push_back(std::move(step));
  ++steps_drawn_here_;
}

void CudaStepRunner::RunWaiting(const engine::StepPlan& plan) {
  CollectAll();
  Step step;
  step.plan = &plan;
  step.output = Run(plan);
  launched_.push_back(std::move(step));
  ++steps_waited_for_;
}

// Errors are kept for who collects the step; that it failed counts at once.
void CudaStepRunner::CollectAll() {
  for (Step& step : launched_) {
    if (!step.in_flight()) continue;
    try {
      step.output = Finish(step);
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception&) {
      step.error = std::current_exception();
      for (const engine::PlannedSample& sample : step.plan->samples) sampler_.Fail(sample.sequence);
      inputs_.Drawn(*step.plan, std::vector<int32_t>(step.plan->samples.size(), engine::kNotFinite));
    }
  }
}

bool CudaStepRunner::Ready() {
  if (launched_.empty()) return false;
  const Step& step = launched_.front();
  return !step.in_flight() || step.results < 0 || cudaEventQuery(results_[step.results].done) != cudaErrorNotReady;
}

StepOutput CudaStepRunner::Collect() {
  SENKO_CHECK(!launched_.empty());
  Step step = std::move(launched_.front());
  launched_.pop_front();
  if (step.error != nullptr) std::rethrow_exception(step.error);
  return step.output ? *std::move(step.output) : Finish(step);
}

void CudaStepRunner::Await(const Step& step) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaEventQuery(results_[step.results].done);
    if (status != cudaErrorNotReady) return SENKO_CUDA(status);
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > patience_) {
      overdue_ = step;
      throw std::runtime_error("has not ended within " + std::to_string(patience_.count()) + " ms");
    }
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

SampleDraw CudaStepRunner::DrawOf(const Results& results, size_t draw, const DrawTerms& terms) const {
  SampleDraw drawn;
  const int32_t token = results.tokens[draw];
  if (terms.failed) {
    drawn.failure = DrawFailure::kBefore;
  } else if (token < 0) {
    drawn.failure = token == ops::kNothingAllowed ? DrawFailure::kNothingAllowed : DrawFailure::kNotFinite;
  } else {
    drawn.output.token = token;
    const int wanted = terms.options->logprobs;
    if (wanted < 0) return drawn;
    const ops::SampleResultSm90& r = results.draws[draw];
    drawn.output.logprob = LogprobOf(r.own);
    const int64_t top = std::min({int64_t{wanted}, ops::kMaxTopLogprobs, gpu_.model().config().vocab_size});
    for (int64_t k = 0; k < top; ++k) drawn.output.top.push_back(LogprobOf(r.top[k]));
  }
  return drawn;
}

StepOutput CudaStepRunner::Finish(const Step& step) {
  const engine::StepPlan& plan = *step.plan;
  StepOutput output;
  output.result.step = plan.step;
  if (step.results >= 0) {
    const Results& r = results_[step.results];
    try {
      Await(step);
      output.model_seconds = Seconds(r.begun, r.computed);
      output.sampler_seconds = Seconds(r.computed, r.drawn);
    } catch (const std::exception& error) {
      Fail(plan.step, error);
    }
    for (size_t i = 0; i < plan.samples.size(); ++i) {
      const engine::PlannedSample& sample = plan.samples[i];
      output.draws.push_back(DrawOf(r, i, sampler_.Terms(sample.sequence, sample.position)));
      const int32_t token = ResultToken(output.draws.back());
      output.result.tokens.push_back(token);
      if (token < 0) {
        sampler_.Fail(sample.sequence);
      } else {
        sampler_.Commit(sample.sequence, token);
      }
    }
  }
  inputs_.Drawn(plan, output.result.tokens);
  EndAll(plan);
  return output;
}

}  // namespace senko::runtime
