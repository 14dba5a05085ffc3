// One choice of a request, from its arrival to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/page_hash.h"
#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "engine/request.h"

namespace senko::engine {

// The memory of a running sequence. Move-only; gives everything back when it goes.
struct Residency {
  cache::SlotRef slot;
  std::vector<cache::PageRef> pages;  // page k holds positions [k * block_size, (k + 1) * block_size)

  Residency() = default;
  Residency(Residency&&) noexcept = default;
  Residency& operator=(Residency&& other) noexcept {
    DropPages(0);
    slot = std::move(other.slot);
    pages = std::move(other.pages);
    return *this;
  }
  ~Residency() { DropPages(0); }
  // Keeps the first `count` pages. The last ones go first, so that of a cached prefix the beginning lives longest.
  void DropPages(size_t count) {
    while (pages.size() > count) pages.pop_back();
  }
};

enum class State {
  kUnborn,    // a later choice, before the prompt is complete
  kWaiting,   // owns nothing; its tokens are all that is kept
  kRunning,   // owns a residency
  kFinished,  // owns nothing; steps that still name it are drained
};

// Plain data that the scheduler's parts share. Lengths and positions are tokens.
struct Sequence {
  uint64_t id = 0;
  std::shared_ptr<const Request> request;
  uint64_t arrival = 0;  // order of arrival; the choices of a request share it
  State state = State::kWaiting;
  Residency residency;

  int64_t waiting_length = 0;  // its length when it began to wait, by which short ones are found

  std::vector<int32_t> answer;         // every committed token; before them stands the request's prompt
  std::vector<cache::PageHash> names;  // of the whole pages of known tokens, made when they are needed
  int64_t matched = 0;                 // pages of those that were found when it was last looked for a hit

  // [0, planned) is computed once the planned steps have run, [0, computed) has been.
  int64_t planned = 0;
  int64_t computed = 0;
  int64_t indexed = 0;                     // pages offered to the prefix index
  int64_t first_written_page = INT64_MAX;  // by any of its residencies
  // Draws of planned steps whose tokens are not known yet (0 or 1; any number while drafts are verified).
  int64_t pending = 0;
  int64_t pending_sample = 0;   // of the last step that includes the sequence
  std::vector<int32_t> drafts;  // proposals for the rows after the last token
  bool verifying = false;       // a step with its drafts is running: what follows is not known

  uint64_t last_step = 0;  // that names it
  int64_t in_flight = 0;   // steps that name it and have not advanced
  uint64_t residence = 0;  // counts residencies: a step of an earlier one must not touch this one's progress
  bool was_scheduled = false;
  bool forked = false;                           // the first choice: the others have begun
  bool broken = false;                           // a step or a draw of it failed: nothing behind it may be kept
  std::optional<cache::PageHash> turn_snapshot;  // the last one taken behind the prompt; a later one replaces it

  // Replay (architecture.md section 3), of this residency.
  int64_t replay_start = 0;
  int64_t write_floor = 0;
  int64_t keep_begin = 0;
  int64_t tail_start = 0;

  int64_t prompt_tokens() const { return request->prompt.size(); }
  int64_t generated() const { return static_cast<int64_t>(answer.size()); }
  int64_t known() const { return prompt_tokens() + generated(); }
  // 0 <= position < known().
  int32_t token(int64_t position) const {
    return position < prompt_tokens() ? request->prompt.ids[static_cast<size_t>(position)]
                                      : answer[static_cast<size_t>(position - prompt_tokens())];
  }
  // Tokens it has or is sure to get.
  int64_t length() const { return known() + pending; }
  int64_t remaining() const { return length() - planned; }
};

// Who comes first: lower priority, then earlier arrival, then lower choice.
struct Before {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request->priority != b->request->priority) return a->request->priority < b->request->priority;
    if (a->arrival != b->arrival) return a->arrival < b->arrival;
    return a->id < b->id;
  }
};

// The same among equals in priority, but the shortest first.
struct Shorter {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request->priority != b->request->priority || a->waiting_length == b->waiting_length) return Before()(a, b);
    return a->waiting_length < b->waiting_length;
  }
};

}  // namespace senko::engine
