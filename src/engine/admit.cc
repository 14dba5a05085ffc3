// Who gets pages and a slot: prefix hits, admission, growth, preemption.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/plan_draft.h"
#include "engine/scheduler.h"

namespace senko::engine {
namespace {

// Arrivals looked at per step: those that cannot run yet are passed over, but not without end. Whoever stands far
// behind long ones is still seen when it is short.
constexpr size_t kMaxInOrder = 48, kMaxShortest = 16;

}  // namespace

void Scheduler::NamePages(Sequence& s, int64_t count) {
  std::vector<int32_t> page(static_cast<size_t>(std::ssize(s.names) < count ? block_size_ : 0));
  while (std::ssize(s.names) < count) {
    const int64_t first = std::ssize(s.names) * block_size_;
    for (int64_t i = 0; i < block_size_; ++i) page[static_cast<size_t>(i)] = s.token(first + i);
    s.names.push_back(hasher_.Next(s.names.empty() ? hasher_.Root(s.request->cache_salt) : s.names.back(), page));
  }
}

// Waiting sequences are looked at in every step, so what was found last is only looked at from its end on: pages before
// it may have gone since. `sure`: from the beginning.
Scheduler::Hit Scheduler::FindHit(Sequence& s, bool sure) {
  Hit hit;
  if (!options_.prefix_caching || s.request->prompt_logits) return hit;
  // At least the last known token always runs.
  const int64_t whole = (s.known() - 1) / block_size_;
  NamePages(s, whole);
  const auto names = std::span(s.names).first(static_cast<size_t>(whole));
  s.matched = std::min(s.matched, whole);
  if (sure || (s.matched > 0 && !index_.Contains(names[static_cast<size_t>(s.matched - 1)]))) s.matched = 0;
  s.matched += index_.Match(names.subspan(static_cast<size_t>(s.matched)));
  int64_t pages = s.matched;
  if (options_.encoder_replay) {
    if (pages * block_size_ <= config_.window) return hit;
    hit.tokens = pages * block_size_;
    hit.start = hit.tokens - config_.window;
    return hit;
  }
  const int64_t keep_begin = KeepBegin(*s.request);
  for (; pages > 0; --pages) {
    cache::SnapshotRef snapshot = snapshots_.Find(s.names[static_cast<size_t>(pages - 1)]);
    if (!snapshot) continue;
    // The later layers' windows behind the snapshot must be those that this prompt's own kept rows would have written.
    if (pages * block_size_ > keep_begin && snapshots_.tail_start(snapshot) != keep_begin) continue;
    hit.tokens = hit.start = pages * block_size_;
    hit.snapshot = std::move(snapshot);
    return hit;
  }
  return hit;
}

void Scheduler::Enqueue(Sequence& s) {
  s.waiting_length = s.length();
  waiting_.insert(&s);
  shortest_.insert(&s);
}

void Scheduler::Dequeue(Sequence& s) {
  waiting_.erase(&s);
  shortest_.erase(&s);
}

// The first in order, then the shortest of the others.
std::vector<Sequence*> Scheduler::Candidates() const {
  std::vector<Sequence*> found;
  auto last = waiting_.begin();
  for (; last != waiting_.end() && found.size() < kMaxInOrder; ++last) found.push_back(*last);
  if (last == waiting_.end()) return found;
  size_t looked = 0;
  for (auto at = shortest_.begin(); at != shortest_.end() && looked < kMaxShortest; ++at, ++looked) {
    if (!Before()(*at, *last)) found.push_back(*at);
  }
  return found;
}

void Scheduler::AdmitArrivals(Draft& draft, int64_t share, std::vector<Want>* wants) {
  for (Sequence* s : Candidates()) {
    if (draft.rows_left == 0 || slots_.free_slots() == 0) return;
    if (s->pending > 0) continue;
    // An arrival that would get no row now is better off outside: what others compute meanwhile may be a hit.
    const auto gets_rows = [&](const Hit& hit) {
      const int64_t todo = s->length() - hit.start;
      bool first = true;
      int64_t taken = 0;
      for (const Want& want : *wants) {
        if (Before()(want.sequence, s)) first = false;
        if (want.sequence->remaining() <= todo) taken += std::min(want.sequence->remaining(), share);
      }
      return first || taken < draft.rows_left;
    };
    if (!gets_rows(FindHit(*s, false))) continue;
    Hit hit = FindHit(*s, true);
    if (!gets_rows(hit)) continue;
    if (!Admit(draft, *s, std::move(hit))) return;
    if (s->remaining() == 1) {
      AddSpan(draft, *s, 1, 0);
      --draft.rows_left;
    } else {
      wants->push_back({s, 0});
    }
  }
}

bool Scheduler::Admit(Draft& draft, Sequence& s, Hit hit) {
  Residency residency;
  residency.pages = index_.Adopt(std::span(s.names).first(static_cast<size_t>(hit.tokens / block_size_)));
  // All of its known tokens get their pages now, and the others keep one each to grow into: an admission must not lead
  // to a preemption at once.
  const int64_t needed = PagesFor(s.length()) - static_cast<int64_t>(residency.pages.size());
  if (needed + running() > pages_.free_pages()) return false;
  for (int64_t p = 0; p < needed; ++p) residency.pages.push_back(std::move(*pages_.Allocate()));
  residency.slot = std::move(*slots_.Allocate());

  Dequeue(s);
  s.residency = std::move(residency);
  s.state = State::kRunning;
  ++s.residence;
  running_.insert(&s);
  s.planned = s.computed = hit.start;
  s.indexed = hit.tokens / block_size_;
  s.write_floor = hit.tokens;
  s.first_written_page = std::min(s.first_written_page, hit.tokens / block_size_);
  s.keep_begin = KeepBegin(*s.request);
  s.replay_start = options_.encoder_replay ? hit.start : 0;
  s.tail_start = std::max(s.keep_begin, s.replay_start);
  s.drafts.clear();
  if (hit.snapshot) {
    draft.plan.load_snapshots.push_back({hit.snapshot.index(), s.residency.slot.index()});
    draft.step.reading.push_back(std::move(hit.snapshot));
    draft.step.loading.push_back(s.id);
    s.last_step = draft.plan.step;  // names it, also if it gets no row yet: its slot is written
    ++s.in_flight;
  }
  // A prompt counts once for all choices: another one comes this way after choice 0, if it found no slot at the fork.
  if (!s.was_scheduled && ChoiceOf(s.id) == 0) {
    stats_.prompt_tokens += static_cast<uint64_t>(s.prompt_tokens());
    stats_.prefix_queries += static_cast<uint64_t>(s.prompt_tokens());
    stats_.prefix_hits += static_cast<uint64_t>(hit.tokens);
  }
  events_.push_back({Event::Kind::kScheduled, s.id, -1, -1, Finish::kNone, hit.tokens, s.was_scheduled});
  s.was_scheduled = true;
  return true;
}

int64_t Scheduler::PagesComing() const {
  int64_t coming = 0;
  for (const Drained& drained : draining_) {
    for (const cache::PageRef& page : drained.residency.pages) coming += pages_.references(page.index()) == 1;
  }
  return coming;
}

// Pages for [0, tokens), preempting those who come after `s`. False: not in this step.
bool Scheduler::GrowPages(const Draft& draft, Sequence& s, int64_t tokens) {
  for (;;) {
    int64_t missing = PagesFor(tokens) - static_cast<int64_t>(s.residency.pages.size());
    for (; missing > 0; --missing) {
      auto page = pages_.Allocate();
      if (!page) break;
      s.residency.pages.push_back(std::move(*page));
    }
    if (missing <= 0) return true;
    if (PagesComing() >= missing) return false;  // running steps hold them; preempting more would not help sooner
    const auto victim = std::find_if(running_.rbegin(), running_.rend(),
                                     [&](const Sequence* other) { return !draft.Includes(*other); });
    SENKO_CHECK(victim != running_.rend());  // `s` itself is not included yet
    if (*victim == &s) {
      // Whoever comes before already runs in this step, or `s` is alone and its pages do not reach: the latter cannot
      // be, as the pool holds a sequence of max_model_len.
      SENKO_CHECK(running() > 1 || !draining_.empty());
      Preempt(s);
      return false;
    }
    Preempt(**victim);
  }
}

void Scheduler::Preempt(Sequence& s) {
  SENKO_CHECK(s.state == State::kRunning);
  ++stats_.preemptions;
  IndexPages(s);
  Leave(s);
  running_.erase(&s);
  s.state = State::kWaiting;
  s.planned = s.computed = s.indexed = 0;
  s.drafts.clear();
  Enqueue(s);
}

void Scheduler::Leave(Sequence& s) {
  if (s.in_flight > 0) {
    draining_.push_back({s.last_step, std::move(s.residency)});
  }
  s.residency = Residency();
  ++s.residence;
}

}  // namespace senko::engine
