// The scheduler: which rows run next, on which pages and slots. Two verbs, Plan and Advance; README.md is the contract.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/page_hash.h"
#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "config/decoder_replay.h"
#include "config/model_config.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"

namespace senko::engine {

struct SchedulerOptions {
  int64_t max_model_len = 0;                 // at most config.max_positions + 1: a sequence's last token is never fed
  int64_t max_rows = 512;                    // of a step
  int64_t long_prefill_token_threshold = 0;  // 0: half of max_rows, and only while others want rows
  int64_t verify_rows = 1;                   // most rows of a sequence in a decode step
  int64_t steps_in_flight = 2;               // plans that may be made before the oldest has advanced: 1 or 2
  bool prefix_caching = true;
  bool encoder_replay = true;
  config::DecoderReplay decoder_replay = config::DecoderReplay::kTrim;
  std::string fingerprint;  // of the model and the KV format, for the names of cached pages
};

// Counters since the beginning.
struct SchedulerStats {
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  // Tokens of prompts admitted the first time, each once for all choices.
  uint64_t prompt_tokens = 0;
  uint64_t prefix_queries = 0;
  uint64_t prefix_hits = 0;
  uint64_t replayed_rows = 0;
  uint64_t encoder_rows = 0;
  uint64_t decoder_rows = 0;
  uint64_t trimmed_rows = 0;  // encoder_rows - decoder_rows
  uint64_t committed_tokens = 0;
  uint64_t discarded_tokens = 0;  // drawn for a sequence that had ended
};

// A pure state machine: no clock, no thread, no I/O. The pools outlive it.
class Scheduler {
 public:
  // Errors: kInvalidArgument naming the flag when a step cannot hold a row of every slot, or a page pool a sequence of
  // max_model_len tokens.
  Scheduler(const config::ModelConfig& config, const SchedulerOptions& options, cache::PagePool& pages,
            cache::SlotPool& slots, cache::SnapshotStore& snapshots);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Errors: kInvalidArgument naming the field for an empty prompt or one longer than max_model_len, choices, id in use.
  void Add(Request request);
  // Ends one choice, or all of a request's, with this reason. Unknown ones are ignored. The end of a first choice
  // before its prompt is complete is the end of the request.
  void End(uint64_t sequence, Finish finish);
  void EndRequest(uint64_t request, Finish finish);

  // The next step, or nothing: enough steps are in flight, or nobody can run before one of them advances. A plan
  // without spans only says who has ended.
  // At most `most_rows` rows run, and never more than the options say.
  std::optional<StepPlan> Plan(int64_t most_rows = INT64_MAX);
  // The oldest step in flight has run, or has failed: then all whom it names end with kNumerical.
  void Advance(const StepResult& result);
  // What happened since the last call, in order.
  std::vector<Event> TakeEvents();

  bool idle() const { return sequences_.empty() && in_flight_.empty() && ended_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t steps_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
  const SchedulerStats& stats() const { return stats_; }
  const cache::PrefixIndex& prefix_index() const { return index_; }
  // The sequence's committed tokens, prompt included; null when it has ended.
  const Sequence* Find(uint64_t sequence) const;

 private:
  struct Span {  // what Advance needs of a planned span
    uint64_t sequence;
    uint64_t residence;
    int64_t begin;
    int64_t end;
    int64_t drafts;
    int64_t first_sample;
    int64_t num_samples;
  };
  struct Saved {  // a snapshot being written
    uint64_t sequence;
    int64_t end;
    cache::SnapshotRef snapshot;
    int64_t tail_start;
  };
  struct Step {
    uint64_t step = 0;
    std::vector<Span> spans;
    std::vector<uint64_t> samples;                     // sequence of each
    std::vector<std::pair<uint64_t, uint64_t>> forks;  // (sequence, residence): choices that begin behind this step
    std::vector<Saved> saved;
    std::vector<cache::SnapshotRef> reading;
    std::vector<uint64_t> loading;  // sequences that begin from those, with a row in this step or later
  };
  struct Drained {
    uint64_t step;
    Residency residency;
  };
  struct Want {
    Sequence* sequence;
    int64_t rows;
  };
  class Draft;  // a plan in the making

  int64_t PagesFor(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  int64_t KeepBegin(const Request& request) const;
  bool UsesSnapshots() const {
    return options_.prefix_caching && !options_.encoder_replay && snapshots_.capacity() > 0;
  }

  // plan.cc
  void PlanDecodes(Draft& draft);
  void PlanPrefills(Draft& draft);
  void PlanForks(Draft& draft, Sequence& parent, int64_t span);
  int64_t SnapshotBoundary(const Sequence& s) const;
  int64_t CutAtSnapshot(const Sequence& s, int64_t rows) const;
  void AddSpan(Draft& draft, Sequence& s, int64_t rows, int64_t drafts);

  // admit.cc
  struct Hit {
    int64_t tokens = 0;  // adopted pages hold [0, tokens)
    int64_t start = 0;   // first row that runs
    cache::SnapshotRef snapshot;
  };
  bool GrowPages(const Draft& draft, Sequence& s, int64_t tokens);
  void Enqueue(Sequence& s);
  void Dequeue(Sequence& s);
  std::vector<Sequence*> Candidates() const;
  void AdmitArrivals(Draft& draft, int64_t share, std::vector<Want>* wants);
  bool Admit(Draft& draft, Sequence& s, Hit hit);
  Hit FindHit(Sequence& s, bool sure);
  void NamePages(Sequence& s, int64_t count);
  void Preempt(Sequence& s);
  void Leave(Sequence& s);  // gives the residency back once no step in flight uses it
  int64_t PagesComing() const;

  // advance.cc
  void BreakAll(const Step& step);
  void Computed(uint64_t sequence, uint64_t residence, int64_t end);
  void Commit(Sequence& s, int32_t token, int64_t sample);
  void IndexPages(Sequence& s);
  void Break(Sequence& s, bool adopted);
  void FinishSequence(Sequence& s, Finish finish, int32_t token = -1);
  void Forget(uint64_t sequence);

  const config::ModelConfig config_;
  const SchedulerOptions options_;
  const int64_t block_size_;
  cache::PagePool& pages_;
  cache::SlotPool& slots_;
  cache::SnapshotStore& snapshots_;
  cache::PrefixIndex index_;
  cache::PageHasher hasher_;

  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, Before> waiting_;
  std::set<Sequence*, Shorter> shortest_;  // the same ones
  std::set<Sequence*, Before> running_;
  std::deque<Step> in_flight_;
  std::vector<Drained> draining_;
  std::vector<uint64_t> ended_;
  std::vector<Event> events_;
  uint64_t next_step_ = 1;
  uint64_t next_arrival_ = 1;
  SchedulerStats stats_;
};

}  // namespace senko::engine
