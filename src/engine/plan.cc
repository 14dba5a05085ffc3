// Choosing the rows of a step: decodes first, then prompts, then new arrivals.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/plan_draft.h"
#include "engine/scheduler.h"

namespace senko::engine {

std::optional<StepPlan> Scheduler::Plan(int64_t most_rows) {
  if (steps_in_flight() >= options_.steps_in_flight) return std::nullopt;
  Draft draft;
  draft.plan.step = next_step_;
  draft.step.step = next_step_;
  draft.rows_left = std::min(options_.max_rows, most_rows);
  PlanDecodes(draft);
  PlanPrefills(draft);
  if (draft.plan.spans.empty() && ended_.empty()) return std::nullopt;
  draft.plan.ended = std::exchange(ended_, {});
  for (const PlannedSpan& s : draft.plan.spans) {
    stats_.encoder_rows += static_cast<uint64_t>(s.rows());
    stats_.decoder_rows += static_cast<uint64_t>(s.kept_rows());
    stats_.trimmed_rows += static_cast<uint64_t>(s.rows() - s.kept_rows());
    const int64_t replayed = std::min(s.end, s.write_floor) - s.begin;
    if (replayed > 0) stats_.replayed_rows += static_cast<uint64_t>(replayed);
  }
  ++stats_.steps;
  ++next_step_;
  in_flight_.push_back(std::move(draft.step));
  return std::move(draft.plan);
}

void Scheduler::PlanDecodes(Draft& draft) {
  // GrowPages may end residencies, so the order is fixed before.
  const std::vector<Sequence*> order(running_.begin(), running_.end());
  for (Sequence* s : order) {
    if (s->state != State::kRunning || s->verifying || s->remaining() != 1 || draft.rows_left == 0) continue;
    // Once it has, or is sure to get, its last token there is nothing to compute.
    const int64_t longest = std::max(options_.max_model_len, s->prompt_tokens() + 1);
    const int64_t room = std::min(s->request->max_tokens - (s->length() - s->prompt_tokens()), longest - s->length());
    if (room <= 0) continue;
    // Drafts stand behind a known token only; each row with its draft may yield one token more.
    const int64_t drafts = s->pending > 0 || s->in_flight > 0
                               ? 0
                               : std::min({static_cast<int64_t>(s->drafts.size()), options_.verify_rows - 1, room - 1,
                                           draft.rows_left - 1});
    if (!GrowPages(draft, *s, s->length() + drafts)) continue;
    AddSpan(draft, *s, 1 + drafts, drafts);
    draft.rows_left -= 1 + drafts;
  }
}

void Scheduler::PlanPrefills(Draft& draft) {
  std::vector<Want> wants;
  for (Sequence* s : running_) {
    if (!s->verifying && s->remaining() > 1) wants.push_back({s, 0});
  }
  const bool capped = options_.long_prefill_token_threshold > 0;
  const int64_t share = capped ? options_.long_prefill_token_threshold : std::max<int64_t>(options_.max_rows / 2, 1);
  auto give = [&](Want& want, int64_t most) {
    const int64_t more = std::min({want.sequence->remaining() - want.rows, most - want.rows, draft.rows_left});
    if (more <= 0) return;
    want.rows += more;
    draft.rows_left -= more;
  };
  AdmitArrivals(draft, share, &wants);
  std::stable_sort(wants.begin(), wants.end(),
                   [](const Want& a, const Want& b) { return Before()(a.sequence, b.sequence); });
  // The first in order always moves on, by up to its share. What is left goes to those with the least to do, so that
  // short prompts pass long ones and none waits for ever.
  if (!wants.empty()) {
    give(wants.front(), share);
    std::stable_sort(wants.begin() + 1, wants.end(), [](const Want& a, const Want& b) {
      const int32_t pa = a.sequence->request->priority, pb = b.sequence->request->priority;
      return pa != pb ? pa < pb : a.sequence->remaining() < b.sequence->remaining();
    });
  }
  for (Want& want : wants) give(want, share);
  if (!capped) {
    for (Want& want : wants) give(want, options_.max_rows);
  }
  for (const Want& want : wants) {
    if (want.rows > 0) AddSpan(draft, *want.sequence, CutAtSnapshot(*want.sequence, want.rows), 0);
  }
}

// The last page boundary of a prompt that the same prompt can hit: a token is left to run behind it.
int64_t Scheduler::SnapshotBoundary(const Sequence& s) const {
  return (s.prompt_tokens() - 1) / block_size_ * block_size_;
}

// Without encoder replay a hit needs the windows as they were at a page boundary, so a prompt's last one ends a span.
int64_t Scheduler::CutAtSnapshot(const Sequence& s, int64_t rows) const {
  if (!UsesSnapshots() || s.request->prompt_logits) return rows;
  const int64_t boundary = SnapshotBoundary(s);
  return s.planned < boundary && boundary < s.planned + rows ? boundary - s.planned : rows;
}

void Scheduler::AddSpan(Draft& draft, Sequence& s, int64_t rows, int64_t drafts) {
  StepPlan& plan = draft.plan;
  PlannedSpan span;
  span.sequence = s.id;
  span.slot = s.residency.slot.index();
  span.drafts = static_cast<int32_t>(drafts);
  span.begin = s.planned;
  span.end = s.planned + rows;
  const int64_t look_back = config_.engram.max_ngram > 0 ? config_.engram.max_ngram - 1 : 0;
  span.ids_begin = std::max<int64_t>(span.begin - look_back, 0);
  span.first_id = static_cast<int64_t>(plan.ids.size());
  for (int64_t p = span.ids_begin; p < span.end; ++p) {
    if (p < s.known()) {
      plan.ids.push_back(s.token(p));
    } else if (p < s.length()) {
      SENKO_CHECK(s.last_step == plan.step - 1);
      plan.ids.push_back(TokenOfSample(s.pending_sample));
    } else {
      plan.ids.push_back(s.drafts[static_cast<size_t>(p - s.known())]);
    }
  }
  span.first_page = static_cast<int64_t>(plan.pages.size());
  span.num_pages = PagesFor(span.end);
  for (int64_t p = 0; p < span.num_pages; ++p) {
    plan.pages.push_back(s.residency.pages[static_cast<size_t>(p)].index());
  }
  span.replay_start = s.replay_start;
  span.write_floor = s.write_floor;
  span.keep_begin = s.keep_begin;
  span.tail_start = s.tail_start;
  span.prompt_logits = s.request->prompt_logits && span.begin < s.prompt_tokens();

  const auto index = static_cast<int64_t>(plan.spans.size());
  const auto first_sample = static_cast<int64_t>(plan.samples.size());
  plan.spans.push_back(span);
  const int64_t last = s.length() - 1;  // the first row whose draw is a new token
  const bool draws = span.end > last;
  for (int64_t p = last; p < span.end; ++p) plan.samples.push_back({index, p, s.id});
  for (size_t i = draft.step.samples.size(); i < plan.samples.size(); ++i) draft.step.samples.push_back(s.id);
  draft.step.spans.push_back({s.id, s.residence, span.begin, span.end, drafts, first_sample,
                              static_cast<int64_t>(plan.samples.size()) - first_sample});
  s.planned = span.end;
  s.last_step = plan.step;
  ++s.in_flight;
  if (draws) {
    s.verifying = drafts > 0;
    s.pending += 1 + drafts;
    s.pending_sample = first_sample;
    s.drafts.clear();
  }
  if (UsesSnapshots() && !s.request->prompt_logits && drafts == 0 && span.end % block_size_ == 0 &&
      (span.end > s.prompt_tokens() || span.end == SnapshotBoundary(s))) {
    cache::SnapshotRef snapshot = snapshots_.Reserve();
    if (snapshot) {
      plan.save_snapshots.push_back({span.slot, snapshot.index()});
      draft.step.saved.push_back({s.id, span.end, std::move(snapshot), s.tail_start});
    }
  }
  if (draws && s.generated() == 0 && ChoiceOf(s.id) == 0 && s.request->choices > 1 && !s.forked) {
    PlanForks(draft, s, index);
  }
}

// The prompt is complete with this span: every other choice continues from a copy of the state behind it.
void Scheduler::PlanForks(Draft& draft, Sequence& parent, int64_t span) {
  parent.forked = true;
  const int64_t prompt = parent.prompt_tokens();
  const bool partial = prompt % block_size_ != 0;
  for (int32_t choice = 1; choice < parent.request->choices; ++choice) {
    const uint64_t id = SequenceId(parent.request->id, choice);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) continue;  // ended before it began
    Sequence& s = *found->second;
    s.pending = 1;
    s.pending_sample = static_cast<int64_t>(draft.plan.samples.size());
    s.last_step = draft.plan.step;
    ++s.in_flight;
    draft.plan.samples.push_back({span, prompt - 1, id});
    draft.step.samples.push_back(id);
    std::optional<cache::PageRef> last;
    if (slots_.free_slots() > 0 && (!partial || (last = pages_.Allocate()))) {
      s.residency.slot = std::move(*slots_.Allocate());
      const int64_t whole = prompt / block_size_;
      for (int64_t p = 0; p < whole; ++p)
        s.residency.pages.push_back(parent.residency.pages[static_cast<size_t>(p)].Share());
      if (partial) {
        draft.plan.copy_pages.push_back({parent.residency.pages[static_cast<size_t>(whole)].index(), last->index()});
        s.residency.pages.push_back(std::move(*last));
      }
      draft.plan.copy_slots.push_back({parent.residency.slot.index(), s.residency.slot.index()});
      s.planned = prompt;
      s.indexed = whole;  // the parent offers them
      s.names.assign(parent.names.begin(),
                     parent.names.begin() + std::min<std::ptrdiff_t>(whole, std::ssize(parent.names)));
      s.first_written_page = parent.first_written_page;
      s.replay_start = parent.replay_start;
      s.write_floor = parent.write_floor;
      s.keep_begin = parent.keep_begin;
      s.tail_start = parent.tail_start;
      ++s.residence;
      s.state = State::kRunning;
      s.was_scheduled = true;
      running_.insert(&s);
    } else {
      s.state = State::kWaiting;
      Enqueue(s);  // comes in later like any arrival, its first token known by then
    }
    draft.step.forks.push_back({id, s.residence});
  }
}

}  // namespace senko::engine
