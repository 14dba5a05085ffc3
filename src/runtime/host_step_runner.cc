#include "runtime/host_step_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace senko::runtime {
namespace {

double Since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int32_t ResultToken(const SampleDraw& draw) {
  if (draw.failure == DrawFailure::kNone) return draw.output.token;
  return draw.failure == DrawFailure::kNotFinite ? engine::kNotFinite : engine::kNoToken;
}

HostStepRunner::HostStepRunner(Executor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots,
                               ThreadPool& pool, int64_t max_drawn_rows)
    : executor_(executor),
      slots_(slots),
      sampler_(executor.model().config().vocab_size, static_cast<int32_t>(executor.model().config().eos_token_id)),
      max_drawn_rows_(max_drawn_rows),
      snapshots_(snapshots),
      pool_(pool),
      logits_(static_cast<size_t>(max_drawn_rows * executor.model().config().vocab_size)) {}

void HostStepRunner::Begin(uint64_t sequence, std::shared_ptr<const GenerationRequest> request) {
  sampler_.Begin(sequence, std::shared_ptr<const SamplingOptions>(request, &request->sampling), request->prompt);
  if (request->sampling.prompt_logprobs >= 0) scored_.emplace(sequence, std::move(request));
}

void HostStepRunner::End(uint64_t sequence) {
  sampler_.End(sequence);
  scored_.erase(sequence);
}

// No copy of a list reads what another one writes.
template <typename From, typename To>
void HostStepRunner::CopyAll(const std::vector<engine::Copy>& copies, size_t bytes, const From& from, const To& to) {
  if (copies.empty()) return;
  std::vector<BlockCopy> blocks;
  for (const engine::Copy& copy : copies) blocks.push_back({to(copy.to), from(copy.from)});
  executor_.Copy(blocks, bytes);
}

void HostStepRunner::CopyBefore(const engine::StepPlan& plan) {
  CopyAll(
      plan.load_snapshots, static_cast<size_t>(slots_.layout().slot_bytes),
      [this](int32_t index) { return snapshots_.data(index); }, [this](int32_t index) { return slots_.data(index); });
}

void HostStepRunner::CopyBehind(const engine::StepPlan& plan) {
  const auto slot_bytes = static_cast<size_t>(slots_.layout().slot_bytes);
  const auto slot = [this](int32_t index) { return slots_.data(index); };
  const auto snapshot = [this](int32_t index) { return snapshots_.data(index); };
  const auto page = [this](int32_t index) { return executor_.pages().data(index); };
  CopyAll(plan.copy_pages, static_cast<size_t>(executor_.pages().layout().page_bytes), page, page);
  CopyAll(plan.copy_slots, slot_bytes, slot, slot);
  CopyAll(plan.save_snapshots, slot_bytes, slot, snapshot);
}

void HostStepRunner::Launch(const engine::StepPlan& plan) {
  SENKO_CHECK(!output_);
  output_ = Run(plan);
}

StepOutput HostStepRunner::Collect() {
  SENKO_CHECK(output_);
  return *std::exchange(output_, std::nullopt);
}

StepOutput HostStepRunner::Run(const engine::StepPlan& plan) {
  StepOutput output;
  output.result.step = plan.step;
  const auto start = std::chrono::steady_clock::now();
  CopyBefore(plan);
  if (!plan.spans.empty()) {
    inputs_.Fill(plan, slots_);
    executor_.Run(inputs_.inputs());
    ScorePrompts(plan, &output);
  }
  output.model_seconds = Since(start);
  Draw(plan, &output);
  CopyBehind(plan);
  inputs_.Drawn(plan, output.result.tokens);
  EndAll(plan);
  return output;
}

StepOutput HostStepRunner::Abandon(const engine::StepPlan& plan) {
  StepOutput output;
  output.result.step = plan.step;
  output.result.ran = false;
  output.result.tokens.assign(plan.samples.size(), engine::kNotFinite);
  output.draws.resize(plan.samples.size());
  for (const engine::PlannedSpan& span : plan.spans) {
    if (span.drafts > 0) output.result.committed.push_back(1);
  }
  for (const engine::PlannedSample& sample : plan.samples) sampler_.Fail(sample.sequence);
  inputs_.Drawn(plan, output.result.tokens);
  EndAll(plan);
  return output;
}

// One row of logits per row drawn from: the choices of a request, however many, share their prompt's last.
std::vector<int64_t> HostStepRunner::RowsOfSamples(const engine::StepPlan& plan, std::vector<int64_t>* distinct) const {
  std::vector<int64_t> rows;
  for (const engine::PlannedSample& sample : plan.samples) {
    rows.push_back(inputs_.KeptRow(plan, sample.span, sample.position));
  }
  *distinct = rows;
  std::sort(distinct->begin(), distinct->end());
  distinct->erase(std::unique(distinct->begin(), distinct->end()), distinct->end());
  SENKO_CHECK(static_cast<int64_t>(distinct->size()) <= max_drawn_rows_);
  return rows;
}

void HostStepRunner::ScorePrompts(const engine::StepPlan& plan, StepOutput* output) {
  const int64_t vocab = executor_.model().config().vocab_size;
  for (size_t i = 0; i < plan.spans.size(); ++i) {
    const engine::PlannedSpan& span = plan.spans[i];
    if (!WantsPromptScores(span)) continue;
    const GenerationRequest& request = *scored_.at(span.sequence);
    PromptScores scores;
    scores.sequence = span.sequence;
    scores.first = span.begin + 1;
    // Row p scores the token at p + 1; the prompt's last row scores none of it.
    const int64_t rows = std::min(span.end, static_cast<int64_t>(request.prompt.size()) - 1) - span.begin;
    const int64_t first = rows > 0 ? inputs_.KeptRow(plan, static_cast<int64_t>(i), span.begin) : 0;
    for (int64_t at = 0; at < rows; at += max_drawn_rows_) {
      const int64_t count = std::min(max_drawn_rows_, rows - at);
      executor_.Logits(first + at, count, logits_.data(), nullptr);
      std::vector<PromptRow> block;
      for (int64_t r = 0; r < count; ++r) {
        block.push_back({logits_.data() + r * vocab, request.prompt[static_cast<size_t>(span.begin + at + r + 1)]});
      }
      if (!sampler_.PromptLogprobs(block, request.sampling.prompt_logprobs, pool_, &scores.tokens)) {
        scores.failed = true;
        break;
      }
    }
    output->prompts.push_back(std::move(scores));
  }
}

void HostStepRunner::Draw(const engine::StepPlan& plan, StepOutput* output) {
  if (plan.samples.empty()) return;
  auto start = std::chrono::steady_clock::now();
  const int64_t vocab = executor_.model().config().vocab_size;
  std::vector<int64_t> distinct;
  const std::vector<int64_t> rows = RowsOfSamples(plan, &distinct);
  executor_.GatherLogits(distinct, logits_.data(), nullptr);
  output->model_seconds += Since(start);

  start = std::chrono::steady_clock::now();
  std::vector<DrawJob> jobs;
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    const auto row = std::lower_bound(distinct.begin(), distinct.end(), rows[i]) - distinct.begin();
    DrawJob job;
    job.sequence = plan.samples[i].sequence;
    job.position = plan.samples[i].position;
    job.logits = logits_.data() + row * vocab;
    job.uncommitted = inputs_.Drafts(plan, plan.samples[i].span, plan.samples[i].position);
    jobs.push_back(job);
  }
  output->draws = sampler_.DrawAll(jobs, pool_);
  for (const SampleDraw& draw : output->draws) output->result.tokens.push_back(ResultToken(draw));
  for (size_t i = 0; i < plan.samples.size();) {
    const engine::PlannedSample& sample = plan.samples[i];
    const engine::PlannedSpan& span = plan.spans[static_cast<size_t>(sample.span)];
    const auto drawn = static_cast<size_t>(span.drafts) + 1;
    // A draft stands while it is the token drawn from the row before it; the first that is not ends the answer so far.
    const std::span<const int32_t> drafts = inputs_.Drafts(plan, sample.span, span.end - 1);
    size_t committed = 1;
    while (committed < drawn && output->result.tokens[i + committed - 1] == drafts[committed - 1]) ++committed;
    if (span.drafts > 0) output->result.committed.push_back(static_cast<int32_t>(committed));
    for (size_t k = 0; k < committed; ++k) {
      const int32_t token = output->result.tokens[i + k];
      if (token < 0) {
        sampler_.Fail(sample.sequence);
        break;
      }
      sampler_.Commit(sample.sequence, token);
    }
    i += drawn;
  }
  output->sampler_seconds = Since(start);
}

}  // namespace senko::runtime
