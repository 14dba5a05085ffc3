// A model of hashes for the scheduler's tests: the dependencies of the real one (windows in rings, entries in pages, a
// pending pair, two passes), but every value is a 64-bit mixture of all that it read. One stale, missing or misplaced
// read changes every later value. Runs thousands of steps a second.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "engine/step_plan.h"

namespace senko::engine::ghost {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15ull + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 29;
  return x * 0x94D049BB133111EBull + 1;
}

// Layers 0 and 1 are the encoder's (layer 0 owns a source of ratio 1), layer 2 is the seam (a source of ratio 2,
// attention in the decoder pass), layers 3 and 4 are the decoder's. Every layer has a window.
inline constexpr int kLayers = 5;
inline constexpr int kSeam = 2;

struct Shape {
  int64_t window = 6;
  int64_t block_size = 4;
  int64_t ring_rows = 8;     // window + the most rows a step may verify, at least
  int64_t pending_rows = 1;  // 1 + verify_rows / 2
};

config::PageLayout PageLayoutOf(const Shape& shape);
config::SlotLayout SlotLayoutOf(const Shape& shape);

// The value that a layer's input row contributes as a key, and a row with one more thing read.
inline uint64_t Key(uint64_t x, int layer) { return Mix(x, 1000 + static_cast<uint64_t>(layer)); }
inline uint64_t Embed(int32_t token) { return Mix(7, static_cast<uint64_t>(token)); }
inline uint64_t Entry1(uint64_t x) { return Mix(x, 77); }
inline uint64_t Entry2(uint64_t first, uint64_t second) { return Mix(Mix(first, 88), second); }
inline int32_t Draw(uint64_t logit, uint64_t sequence, int64_t position, int32_t vocab) {
  return static_cast<int32_t>((Mix(Mix(logit, sequence), static_cast<uint64_t>(position)) >> 33) %
                              static_cast<uint64_t>(vocab));
}

// Runs plans on real pools. Reads nothing but plans, pages, slots and snapshots.
class Executor {
 public:
  Executor(const Shape& shape, cache::PagePool& pages, cache::SlotPool& slots, cache::SnapshotStore& snapshots,
           int32_t vocab)
      : shape_(shape), pages_(pages), slots_(slots), snapshots_(snapshots), vocab_(vocab) {}

  // Drafts are judged against the draw of the row before; `propose` gives each drawing span that many random proposals.
  StepResult Run(const StepPlan& plan, int propose, uint64_t random);

  // The step fails before it has written anything.
  StepResult Fail(const StepPlan& plan);

  // The logit of every row that ran the decoder pass in the last step, by (span, position).
  const std::map<std::pair<int64_t, int64_t>, uint64_t>& logits() const { return logits_; }

  uint64_t PageEntry1(int32_t page, int64_t offset) const;
  uint64_t PageEntry2(int32_t page, int64_t offset) const;

 private:
  struct RingRow {
    int64_t position;
    uint64_t key;
  };
  RingRow& Ring(int32_t slot, int layer, int64_t position);
  uint64_t& Pending(int32_t slot, int64_t position);
  uint64_t& Entry1At(const StepPlan& plan, const PlannedSpan& span, int64_t entry);
  uint64_t& Entry2At(const StepPlan& plan, const PlannedSpan& span, int64_t entry);
  void RunSpan(const StepPlan& plan, int64_t index);
  void Attend(const StepPlan& plan, const PlannedSpan& span, int layer, int64_t from, int64_t floor,
              const std::vector<uint64_t>& keys, std::vector<uint64_t>* rows);

  Shape shape_;
  cache::PagePool& pages_;
  cache::SlotPool& slots_;
  cache::SnapshotStore& snapshots_;
  int32_t vocab_;
  std::vector<int32_t> last_tokens_;
  uint64_t last_step_ = 0;
  std::set<int32_t> unloaded_;  // slots of the failed step before
  std::set<uint64_t> lost_;     // named by a step that failed: what they read is anything
  std::vector<int32_t> ids_;    // of the span that runs, from ids_begin
  std::map<std::pair<int64_t, int64_t>, uint64_t> logits_;
};

// The same values straight from the definition: no pages, no rings, every row kept. What a sequence adopted and how
// much of its prompt runs the decoder pass is given.
class Oracle {
 public:
  // `before`: the ids of rows that do not run (hit - window of them under replay, none otherwise). adopted1/2: entry
  // values of [0, hit) and [0, hit / 2).
  Oracle(const Shape& shape, std::vector<int32_t> before, std::vector<uint64_t> adopted1,
         std::vector<uint64_t> adopted2, int64_t keep_begin);
  // Feeds the next token; positions go on where `before` ended. Returns the row's logit, 0 for a row without decoder
  // pass.
  uint64_t Next(int32_t token);
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Forgets rows from `size` on.
  void Truncate(int64_t size);
  // Of a page's entries, as it is summed from memory.
  uint64_t PageSum(int64_t page) const;

 private:
  struct Row {
    uint64_t input[kLayers];  // of each layer; 0 where it did not run
  };
  Shape shape_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> entries1_, entries2_;
  int64_t start_;
  int64_t adopted_;
  int64_t keep_begin_;
  std::vector<Row> rows_;
};

}  // namespace senko::engine::ghost
