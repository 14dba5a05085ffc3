// What one step runs: flat arrays of plain data, so that a plan can be kept, compared and sent to another host.
#pragma once

#include <cstdint>
#include <vector>

namespace senko::engine {

// A token id, or (below zero) the token drawn by sample `-1 - id` of the step before, which may not be known yet.
using TokenSource = int32_t;
inline constexpr TokenSource TokenOfSample(int64_t sample) { return static_cast<TokenSource>(-1 - sample); }

// Rows [begin, end) of one sequence. Positions are absolute.
struct PlannedSpan {
  uint64_t sequence = 0;
  int32_t slot = -1;
  int32_t drafts = 0;  // the last rows are drafts, to be verified
  int64_t begin = 0;
  int64_t end = 0;
  int64_t ids_begin = 0;  // StepPlan::ids[first_id ...] are the ids of positions [ids_begin, end): look-back included
  int64_t first_id = 0;
  int64_t first_page = 0;  // StepPlan::pages[first_page ...] cover positions [0, end)
  int64_t num_pages = 0;
  // Bounds as in model::SequenceInput.
  int64_t replay_start = 0;
  int64_t write_floor = 0;
  int64_t keep_begin = 0;
  int64_t tail_start = 0;
  bool prompt_logits = false;  // the logits of every row of the prompt are wanted

  int64_t rows() const { return end - begin; }
  int64_t kept_rows() const { return end - (keep_begin < begin ? begin : keep_begin < end ? keep_begin : end); }
};

// A token to draw for `sequence` from the logits of the span's row at `position`. Several sequences may draw from one
// row (n > 1). The samples of a span with drafts are its draft rows and the row before them, in order.
struct PlannedSample {
  int64_t span = 0;  // index into StepPlan::spans
  int64_t position = 0;
  uint64_t sequence = 0;
};

struct Copy {
  int32_t from = -1;
  int32_t to = -1;
};

// Order within a step: load_snapshots, spans, then copy_pages, copy_slots and save_snapshots.
struct StepPlan {
  uint64_t step = 0;
  std::vector<PlannedSpan> spans;
  std::vector<TokenSource> ids;
  std::vector<int32_t> pages;
  std::vector<PlannedSample> samples;
  std::vector<Copy> load_snapshots;  // snapshot -> slot
  std::vector<Copy> copy_pages;
  std::vector<Copy> copy_slots;
  std::vector<Copy> save_snapshots;  // slot -> snapshot
  // Sequences whose private state outside slots and pages (penalties, random draws) begins or ends with this step.
  std::vector<uint64_t> ended;

  int64_t rows() const {
    int64_t n = 0;
    for (const PlannedSpan& s : spans) n += s.rows();
    return n;
  }
};

// Per sample, instead of a token id.
inline constexpr int32_t kNotFinite = -1;  // its logits were not finite: what led to them may be anywhere behind it
inline constexpr int32_t kNoToken = -2;    // nothing could be drawn, though what was computed is sound

// What running a plan gave.
struct StepResult {
  uint64_t step = 0;
  bool ran =
      true;  // false: it failed on the way, and nothing that it or a step behind it wrote for its sequences counts
  std::vector<int32_t> tokens;  // per sample of the plan, or one of the above
  // Per span with drafts, in order: how many of its samples count (1 + accepted drafts).
  std::vector<int32_t> committed;
  // Per span, proposals for the sequence's next rows; empty when nobody proposes.
  std::vector<std::vector<int32_t>> drafts;
};

}  // namespace senko::engine
