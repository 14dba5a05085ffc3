#include "runtime/sampler.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "base/check.h"
#include "engine/request.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/processors.h"
#include "ops/sample/sample.h"

namespace senko::runtime {
namespace {

static_assert(kMaxLogprobs == ops::kMaxTopLogprobs);

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | uint64_t{device()};
}

// Tokens of an answer in the order they first came, with their counts.
struct Counts {
  std::vector<ops::OutputCount> list;
  std::unordered_map<int32_t, size_t> place;  // in `list`
};

// The last ids of `given`, those behind the `known` tokens of a history that must be `wanted` long.
std::span<const int32_t> NotYetKnown(std::span<const int32_t> given, size_t known, int64_t wanted) {
  const int64_t missing = wanted - static_cast<int64_t>(known);
  SENKO_CHECK(missing >= 0 && missing <= static_cast<int64_t>(given.size()));
  return given.last(static_cast<size_t>(missing));
}

}  // namespace

// What the choices of a request share; not changed once they draw.
struct Sampler::RequestState {
  std::shared_ptr<const SamplingOptions> options;
  uint64_t seed = 0;
  int64_t prompt_tokens = 0;
  int64_t sequences = 0;  // that have begun and not ended

  std::vector<int32_t> end_tokens;                  // barred while fewer than min_tokens were drawn
  std::vector<int32_t> barred;                      // bad words of one token
  std::vector<std::span<const int32_t>> bad_words;  // longer ones, by their last token but one; views of `options`
  std::vector<int32_t> prompt_ids;                  // distinct, ascending; under a repetition penalty only

  bool penalises = false;
  bool looks_back() const { return penalises || !bad_words.empty(); }
};

// One choice.
struct Sampler::SequenceState {
  RequestState* request = nullptr;
  uint64_t choice = 0;
  std::vector<int32_t> generated;  // committed; kept where looks_back()
  Counts counts;                   // of them; kept where penalises
  bool failed = false;
};

// A thread's own; it stops growing.
struct Sampler::Scratch {
  std::vector<float> row;
  std::vector<int32_t> barred;
  std::vector<ops::OutputCount> output;

  // The committed counts with the tokens that run ahead.
  std::span<const ops::OutputCount> Counted(const RequestState& request, const Counts& counts,
                                            std::span<const int32_t> ahead) {
    if (ahead.empty()) return counts.list;
    output = counts.list;
    for (const int32_t token : ahead) {
      if (token < 0) continue;
      const auto known = counts.place.find(token);
      auto entry = known != counts.place.end()
                       ? output.begin() + static_cast<std::ptrdiff_t>(known->second)
                       : std::find_if(output.begin() + static_cast<std::ptrdiff_t>(counts.list.size()), output.end(),
                                      [token](const ops::OutputCount& o) { return o.token == token; });
      if (entry == output.end()) {
        output.push_back({token, 0, std::ranges::binary_search(request.prompt_ids, token)});
        entry = output.end() - 1;
      }
      ++entry->count;
    }
    return output;
  }
};

// Appends the last tokens of bad words that the token behind `generated` and `ahead` would complete.
void Sampler::AddCompletions(const RequestState& request, std::span<const int32_t> generated,
                             std::span<const int32_t> ahead, std::vector<int32_t>* barred) {
  const size_t length = generated.size() + ahead.size();
  if (length == 0) return;
  const auto back = [&](size_t n) {  // n = 1: the last token
    return n <= ahead.size() ? ahead[ahead.size() - n] : generated[length - n];
  };
  // Words are sorted by their last token but one. (clang 14 cannot compile libstdc++'s ranges::equal_range.)
  const auto key = [](std::span<const int32_t> word) { return word[word.size() - 2]; };
  const auto begin = std::ranges::lower_bound(request.bad_words, back(1), {}, key);
  for (auto at = begin; at != request.bad_words.end() && key(*at) == back(1); ++at) {
    const std::span<const int32_t> word = *at;
    if (word.size() - 1 > length) continue;
    bool matches = true;
    for (size_t n = 2; matches && n < word.size(); ++n) matches = word[word.size() - 1 - n] == back(n);
    if (matches) barred->push_back(word.back());
  }
}

std::string_view DescribeFailure(DrawFailure failure) {
  switch (failure) {
    case DrawFailure::kNotFinite:
      return "a logit is NaN or infinite; `senko inspect --scan` checks the weights";
    case DrawFailure::kNothingAllowed:
      return "min_tokens, stop_token_ids and bad_words together bar every token that could come next";
    case DrawFailure::kBefore:
      return "the token before could not be drawn";
    case DrawFailure::kNone:
      break;
  }
  return "";
}

Sampler::Sampler(int64_t vocab, int32_t eos_token) : vocab_(vocab), eos_token_(eos_token) {
  SENKO_CHECK(vocab > 0 && vocab <= ops::kMaxVocab && eos_token < vocab);
}

Sampler::~Sampler() = default;

std::unique_ptr<Sampler::RequestState> Sampler::MakeRequest(std::shared_ptr<const SamplingOptions> options,
                                                            std::span<const int32_t> prompt) const {
  const auto check = [this](int32_t id) {
    SENKO_CHECK(id >= 0 && id < vocab_);
    return id;
  };
  auto request = std::make_unique<RequestState>();
  request->options = std::move(options);
  const SamplingOptions& o = *request->options;
  request->seed = o.seed ? *o.seed : RandomSeed();
  request->prompt_tokens = static_cast<int64_t>(prompt.size());
  for (const auto& [token, bias] : o.logit_bias) check(token);
  if (o.min_tokens > 0) {
    if (eos_token_ >= 0) request->end_tokens.push_back(eos_token_);
    for (const int32_t token : o.stop_token_ids) request->end_tokens.push_back(check(token));
  }
  for (const std::vector<int32_t>& word : o.bad_words) {
    SENKO_CHECK(!word.empty());
    for (const int32_t token : word) check(token);
    if (word.size() == 1) {
      request->barred.push_back(word[0]);
    } else {
      request->bad_words.push_back(word);
    }
  }
  std::ranges::sort(request->bad_words, {}, [](std::span<const int32_t> word) { return word[word.size() - 2]; });
  SENKO_CHECK(o.repetition_penalty > 0);
  request->penalises = o.repetition_penalty != 1 || o.frequency_penalty != 0 || o.presence_penalty != 0;
  if (o.repetition_penalty != 1) {
    std::vector<bool> seen(static_cast<size_t>(vocab_));
    for (const int32_t token : prompt) seen[static_cast<size_t>(check(token))] = true;
    for (int32_t v = 0; v < vocab_; ++v) {
      if (seen[static_cast<size_t>(v)]) request->prompt_ids.push_back(v);
    }
  }
  return request;
}

void Sampler::Begin(uint64_t sequence, std::shared_ptr<const SamplingOptions> options,
                    std::span<const int32_t> prompt) {
  SENKO_CHECK(!sequences_.contains(sequence));
  auto request = requests_.find(engine::RequestOf(sequence));
  if (request == requests_.end()) {
    request = requests_.emplace(engine::RequestOf(sequence), MakeRequest(std::move(options), prompt)).first;
  }
  SENKO_CHECK(request->second->prompt_tokens == static_cast<int64_t>(prompt.size()));
  auto state = std::make_unique<SequenceState>();
  state->request = request->second.get();
  state->choice = static_cast<uint64_t>(engine::ChoiceOf(sequence));
  sequences_.emplace(sequence, std::move(state));
  ++request->second->sequences;
}

void Sampler::Commit(uint64_t sequence, int32_t token) {
  const auto found = sequences_.find(sequence);
  SENKO_CHECK(found != sequences_.end() && token >= 0 && token < vocab_);
  SequenceState& s = *found->second;
  if (!s.request->looks_back()) return;
  s.generated.push_back(token);
  if (!s.request->penalises) return;
  const auto [place, is_new] = s.counts.place.try_emplace(token, s.counts.list.size());
  if (is_new) s.counts.list.push_back({token, 0, std::ranges::binary_search(s.request->prompt_ids, token)});
  ++s.counts.list[place->second].count;
}

void Sampler::Fail(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found != sequences_.end()) found->second->failed = true;
}

void Sampler::End(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  const bool last = --found->second->request->sequences == 0;
  sequences_.erase(found);
  if (last) requests_.erase(engine::RequestOf(sequence));
}

const Sampler::SequenceState& Sampler::Find(uint64_t sequence) const {
  const auto found = sequences_.find(sequence);
  SENKO_CHECK(found != sequences_.end());
  return *found->second;
}

TokenOutput Sampler::Logprobs(const float* logits, int32_t token, int top) const {
  std::vector<ops::LogprobEntry> entries(static_cast<size_t>(std::min<int64_t>({top, kMaxLogprobs, vocab_})));
  ops::LogprobEntry own;
  TokenOutput output;
  if (!ops::LogprobsCpu({vocab_, logits, token, &own, entries})) return output;
  output.token = token;
  output.logprob = TokenLogprob{own.token, own.logprob, own.rank};
  output.top.reserve(entries.size());
  for (const ops::LogprobEntry& e : entries) output.top.push_back({e.token, e.logprob, e.rank});
  return output;
}

// Those that no answer so far changes.
void Sampler::AddListed(const RequestState& request, int64_t drawn_before, std::vector<int32_t>* barred) {
  barred->insert(barred->end(), request.barred.begin(), request.barred.end());
  if (drawn_before < request.options->min_tokens) {
    barred->insert(barred->end(), request.end_tokens.begin(), request.end_tokens.end());
  }
}

DrawTerms Sampler::Terms(uint64_t sequence, int64_t position) const {
  const SequenceState& s = Find(sequence);
  const RequestState& request = *s.request;
  DrawTerms terms;
  terms.options = request.options.get();
  terms.seed = request.seed;
  terms.choice = s.choice;
  terms.failed = s.failed;
  terms.penalises = request.penalises;
  terms.has_longer_bad_words = !request.bad_words.empty();
  terms.drawn = position + 1 - request.prompt_tokens;
  SENKO_CHECK(terms.drawn >= 0);
  if (request.looks_back() && !s.failed) terms.unknown = terms.drawn - static_cast<int64_t>(s.generated.size());
  SENKO_CHECK(terms.unknown >= 0);
  terms.prompt_ids = request.prompt_ids;
  terms.committed = s.counts.list;
  return terms;
}

void Sampler::AppendBarred(uint64_t sequence, int64_t position, std::vector<int32_t>* barred) const {
  const SequenceState& s = Find(sequence);
  const RequestState& request = *s.request;
  const int64_t drawn_before = position + 1 - request.prompt_tokens;
  AddListed(request, drawn_before, barred);
  if (request.bad_words.empty() || s.failed) return;
  SENKO_CHECK(static_cast<int64_t>(s.generated.size()) == drawn_before);
  AddCompletions(request, s.generated, {}, barred);
}

SampleDraw Sampler::Draw(const DrawJob& job) const {
  const SequenceState& s = Find(job.sequence);
  SampleDraw draw;
  if (s.failed) {
    draw.failure = DrawFailure::kBefore;
    return draw;
  }
  const RequestState& request = *s.request;
  const SamplingOptions& o = *request.options;
  const int64_t drawn_before = job.position + 1 - request.prompt_tokens;
  SENKO_CHECK(drawn_before >= 0);

  thread_local Scratch scratch;
  ops::ProcessorParams process;
  process.vocab = vocab_;
  process.bias = o.logit_bias;
  process.allowed = job.allowed;
  scratch.barred.clear();
  AddListed(request, drawn_before, &scratch.barred);
  if (request.looks_back()) {
    const auto ahead = NotYetKnown(job.uncommitted, s.generated.size(), drawn_before);
    for (const int32_t token : ahead) SENKO_CHECK(token < vocab_);
    AddCompletions(request, s.generated, ahead, &scratch.barred);
    if (request.penalises) {
      process.repetition = o.repetition_penalty;
      process.frequency = o.frequency_penalty;
      process.presence = o.presence_penalty;
      process.prompt = request.prompt_ids;
      process.output = scratch.Counted(request, s.counts, ahead);
    }
  }
  process.banned = scratch.barred;

  ops::SampleParams sample{vocab_,       job.logits, o.temperature,
                           o.top_k,      o.top_p,    o.min_p,
                           request.seed, s.choice,   static_cast<uint64_t>(job.position + 1)};
  // Other jobs, and the log-probabilities, read the row as it came.
  if (!process.bias.empty() || process.allowed != nullptr || !process.banned.empty() || !process.prompt.empty() ||
      !process.output.empty()) {
    scratch.row.assign(job.logits, job.logits + vocab_);
    process.logits = scratch.row.data();
    sample.logits = scratch.row.data();
    sample.banned = ops::ProcessCpu(process);
  }
  const int64_t token = ops::SampleCpu(sample);
  if (token < 0) {
    draw.failure = token == ops::kNothingAllowed ? DrawFailure::kNothingAllowed : DrawFailure::kNotFinite;
    return draw;
  }
  draw.output.token = static_cast<int32_t>(token);
  if (o.logprobs >= 0) draw.output = Logprobs(job.logits, draw.output.token, o.logprobs);
  if (draw.output.token < 0) draw.failure = DrawFailure::kNotFinite;
  return draw;
}

std::vector<SampleDraw> Sampler::DrawAll(std::span<const DrawJob> jobs, ThreadPool& pool) const {
  std::vector<SampleDraw> draws(jobs.size());
  pool.ParallelFor(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) draws[static_cast<size_t>(i)] = Draw(jobs[static_cast<size_t>(i)]);
  });
  return draws;
}

bool Sampler::PromptLogprobs(std::span<const PromptRow> rows, int top, ThreadPool& pool,
                             std::vector<TokenOutput>* out) const {
  SENKO_CHECK(top >= 0);
  const size_t first = out->size();
  out->resize(first + rows.size());
  std::atomic<bool> finite{true};
  pool.ParallelFor(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const PromptRow& row = rows[static_cast<size_t>(i)];
      TokenOutput& output = (*out)[first + static_cast<size_t>(i)];
      output = Logprobs(row.logits, row.next, top);
      if (output.token < 0) finite = false;
    }
  });
  if (!finite) out->resize(first);
  return finite;
}

}  // namespace senko::runtime
