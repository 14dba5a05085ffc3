// Taking in what a step computed, and ends.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/scheduler.h"

namespace senko::engine {
namespace {

// The chain's root must differ wherever entries of equal ids would.
std::string Fingerprint(const SchedulerOptions& options, int64_t block_size) {
  return options.fingerprint + "|block " + std::to_string(block_size);
}

}  // namespace

Scheduler::Scheduler(const config::ModelConfig& config, const SchedulerOptions& options, cache::PagePool& pages,
                     cache::SlotPool& slots, cache::SnapshotStore& snapshots)
    : config_(config),
      options_(options),
      block_size_(pages.layout().block_size),
      pages_(pages),
      slots_(slots),
      snapshots_(snapshots),
      index_(pages),
      hasher_(Fingerprint(options, block_size_)) {
  SENKO_CHECK(options.max_model_len > 0 && options.max_model_len <= config.max_positions + 1);
  SENKO_CHECK(options.steps_in_flight == 1 || options.steps_in_flight == 2);
  SENKO_CHECK(options.verify_rows >= 1);
  if (options.max_rows < slots.num_slots() * options.verify_rows) {
    throw Error(ErrorCode::kInvalidArgument, "--max-num-batched-tokens " + std::to_string(options.max_rows) +
                                                 " is less than --max-num-seqs " + std::to_string(slots.num_slots()) +
                                                 " times the " + std::to_string(options.verify_rows) +
                                                 " rows each may decode in a step");
  }
  if (pages.num_pages() < PagesFor(options.max_model_len)) {
    throw Error(ErrorCode::kInvalidArgument, "--max-model-len " + std::to_string(options.max_model_len) + " needs " +
                                                 std::to_string(PagesFor(options.max_model_len)) +
                                                 " pages and there are " + std::to_string(pages.num_pages()) +
                                                 ", enough for " + std::to_string(pages.num_pages() * block_size_) +
                                                 " tokens; raise --kv-cache-memory-bytes");
  }
}

Scheduler::~Scheduler() = default;

int64_t Scheduler::KeepBegin(const Request& request) const {
  return request.prompt_logits ? 0 : config::FirstKeptRow(config_, request.prompt.size(), options_.decoder_replay);
}

const Sequence* Scheduler::Find(uint64_t sequence) const {
  const auto found = sequences_.find(sequence);
  return found == sequences_.end() || found->second->state == State::kFinished ? nullptr : found->second.get();
}

void Scheduler::Add(Request request) {
  auto refuse = [](const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); };
  if (request.prompt.size() == 0) refuse("prompt: is empty");
  // One that takes every position still draws a token: the last is never fed.
  const int64_t longest = std::min(options_.max_model_len, config_.max_positions);
  if (request.prompt.size() > longest) {
    refuse("prompt: has " + std::to_string(request.prompt.size()) + " tokens, and the limit is " +
           std::to_string(longest));
  }
  if (request.choices < 1 || request.choices >= (1 << kChoiceBits)) refuse("n: must be between 1 and 255");
  if (request.max_tokens < 1) refuse("max_tokens: must be at least 1");
  if (request.id >= uint64_t{1} << (64 - kChoiceBits) || sequences_.contains(SequenceId(request.id, 0))) {
    refuse("request id " + std::to_string(request.id) + " is in use or too large");
  }
  const auto shared = std::make_shared<const Request>(std::move(request));
  const uint64_t arrival = next_arrival_++;
  for (int32_t choice = 0; choice < shared->choices; ++choice) {
    auto s = std::make_unique<Sequence>();
    s->id = SequenceId(shared->id, choice);
    s->request = shared;
    s->arrival = arrival;
    if (choice == 0) {
      s->state = State::kWaiting;
      Enqueue(*s);
    }
    sequences_.emplace(s->id, std::move(s));
  }
}

void Scheduler::End(uint64_t sequence, Finish finish) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  Sequence& s = *found->second;
  if (finish == Finish::kNumerical) Break(s, s.generated() == 0);
  if (s.state == State::kFinished) return;
  if (ChoiceOf(sequence) == 0 && !s.forked && s.request->choices > 1) {
    EndRequest(RequestOf(sequence), finish);  // nobody would compute the prompt for the others
    return;
  }
  FinishSequence(s, finish);
  Forget(sequence);
}

void Scheduler::EndRequest(uint64_t request, Finish finish) {
  for (int32_t choice = 0; choice < (1 << kChoiceBits); ++choice) {
    const auto found = sequences_.find(SequenceId(request, choice));
    if (found == sequences_.end() || found->second->state == State::kFinished) continue;
    FinishSequence(*found->second, finish);
    Forget(SequenceId(request, choice));
  }
}

std::vector<Event> Scheduler::TakeEvents() { return std::exchange(events_, {}); }

void Scheduler::Advance(const StepResult& result) {
  SENKO_CHECK(!in_flight_.empty() && in_flight_.front().step == result.step);
  Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  SENKO_CHECK(result.tokens.size() == step.samples.size());
  if (!result.ran) BreakAll(step);

  // How many samples of each span with drafts count; of the others, all.
  std::vector<uint8_t> counts(step.samples.size(), 1);
  size_t verified = 0;
  for (size_t i = 0; i < step.spans.size(); ++i) {
    const Span& span = step.spans[i];
    int64_t end = span.end;
    if (span.drafts > 0) {
      SENKO_CHECK(verified < result.committed.size());
      const int64_t committed = result.committed[verified++];
      SENKO_CHECK(committed >= 1 && committed <= span.num_samples);
      for (int64_t k = committed; k < span.num_samples; ++k) counts[static_cast<size_t>(span.first_sample + k)] = 0;
      end = span.begin + committed;
    }
    Computed(span.sequence, span.residence, end);
    Sequence& s = *sequences_.at(span.sequence);
    if (span.drafts > 0 && s.residence == span.residence && s.state == State::kRunning) {
      // The rejected rows never were: they run again with other tokens, over what they wrote.
      s.planned = end;
    }
    s.verifying = s.verifying && span.drafts == 0;
    if (i < result.drafts.size() && s.residence == span.residence && s.state == State::kRunning) {
      s.drafts = result.drafts[i];
    }
  }
  for (const uint64_t sequence : step.loading) --sequences_.at(sequence)->in_flight;
  for (const auto& [sequence, residence] : step.forks) {
    Computed(sequence, residence, sequences_.at(sequence)->prompt_tokens());
  }
  for (size_t i = 0; i < step.samples.size(); ++i) {
    Sequence& s = *sequences_.at(step.samples[i]);
    --s.pending;
    if (counts[i] == 0) continue;
    if (result.tokens[i] == kNotFinite) Break(s, s.generated() == 0);  // also of one that has ended meanwhile
    if (s.state == State::kFinished) {
      ++stats_.discarded_tokens;
    } else {
      Commit(s, result.tokens[i], static_cast<int64_t>(i));
    }
  }
  for (const Saved& saved : step.saved) {
    const auto found = sequences_.find(saved.sequence);
    Sequence& s = *found->second;
    // The name needs every token before the boundary.
    if (s.broken || s.known() < saved.end) continue;
    NamePages(s, saved.end / block_size_);
    const cache::PageHash name = s.names[static_cast<size_t>(saved.end / block_size_ - 1)];
    // Of two that took the same one, who came first owns it, and replaces it later.
    if (snapshots_.Publish(saved.snapshot, name, saved.tail_start) && saved.end > s.prompt_tokens()) {
      if (s.turn_snapshot && *s.turn_snapshot != name) snapshots_.Drop(*s.turn_snapshot);
      s.turn_snapshot = name;
    }
  }
  for (const Span& span : step.spans) {
    Sequence& s = *sequences_.at(span.sequence);
    if (s.residence == span.residence && s.state == State::kRunning) {
      IndexPages(s);
      if (span.drafts > 0) s.residency.DropPages(static_cast<size_t>(PagesFor(s.length())));
    }
  }
  std::erase_if(draining_, [&](const Drained& d) { return d.step <= step.step; });
  for (const Span& span : step.spans) Forget(span.sequence);
  for (const uint64_t sequence : step.loading) Forget(sequence);
  for (const auto& fork : step.forks) Forget(fork.first);
}

// Everybody whom a step that did not run names has lost their state, and so have the choices that go on from one of
// them in the step behind it.
void Scheduler::BreakAll(const Step& step) {
  const auto end = [this](uint64_t sequence) {
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end()) return;
    Break(*found->second, false);
    End(sequence, Finish::kNumerical);
  };
  for (const uint64_t sequence : step.loading) end(sequence);
  for (const Span& span : step.spans) end(span.sequence);
  for (const auto& fork : step.forks) end(fork.first);
  for (const Step& behind : in_flight_) {
    for (const auto& fork : behind.forks) {
      const auto parent = sequences_.find(SequenceId(RequestOf(fork.first), 0));
      if (parent != sequences_.end() && parent->second->broken) end(fork.first);
    }
  }
}

// One step fewer names the sequence; its entries up to `end` are written.
void Scheduler::Computed(uint64_t sequence, uint64_t residence, int64_t end) {
  Sequence& s = *sequences_.at(sequence);
  --s.in_flight;
  if (s.state == State::kRunning && s.residence == residence) s.computed = std::max(s.computed, end);
}

void Scheduler::Commit(Sequence& s, int32_t token, int64_t sample) {
  if (token < 0) {
    FinishSequence(s, token == kNotFinite ? Finish::kNumerical : Finish::kNothingToDraw);
    return;
  }
  s.answer.push_back(token);
  ++stats_.committed_tokens;
  events_.push_back({Event::Kind::kToken, s.id, token, sample, Finish::kNone, 0, false});
  const Request& r = *s.request;
  const bool stops = std::find(r.stop_tokens.begin(), r.stop_tokens.end(), token) != r.stop_tokens.end();
  if (stops && s.generated() >= r.min_tokens) {
    FinishSequence(s, Finish::kStop, token);
  } else if (s.generated() >= r.max_tokens || s.known() >= options_.max_model_len) {
    FinishSequence(s, Finish::kLength);
  }
}

// Whole pages whose tokens are all committed and written can be found from now on.
void Scheduler::IndexPages(Sequence& s) {
  if (!options_.prefix_caching || s.state != State::kRunning) return;
  const int64_t whole = std::min(s.computed, s.known()) / block_size_;
  if (whole <= s.indexed) return;
  NamePages(s, whole);
  for (; s.indexed < whole; ++s.indexed) {
    const auto page = static_cast<size_t>(s.indexed);
    index_.Insert(s.names[page], s.residency.pages[page].index());
  }
}

// What led to a failure may lie in the pages and snapshots that the sequence wrote, before a preemption too: nobody
// shall find them again, whoever else has written the same ones. One whose first token already fails may have adopted
// what spoilt it (`adopted`); so a prefix that spoils others is not found for ever.
void Scheduler::Break(Sequence& s, bool adopted) {
  if (std::exchange(s.broken, true)) return;
  for (auto page = adopted ? 0 : s.first_written_page; page < std::ssize(s.names); ++page) {
    index_.Remove(s.names[static_cast<size_t>(page)]);
    snapshots_.Drop(s.names[static_cast<size_t>(page)]);
  }
}

void Scheduler::FinishSequence(Sequence& s, Finish finish, int32_t token) {
  if (s.state == State::kRunning) {
    if (!s.broken) IndexPages(s);
    Leave(s);
    running_.erase(&s);
  } else if (s.state == State::kWaiting) {
    Dequeue(s);
  }
  s.state = State::kFinished;
  ended_.push_back(s.id);
  events_.push_back({Event::Kind::kFinished, s.id, token, -1, finish, 0, false});
}

void Scheduler::Forget(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  const Sequence& s = *found->second;
  if (s.state == State::kFinished && s.in_flight == 0) sequences_.erase(found);
}

}  // namespace senko::engine
