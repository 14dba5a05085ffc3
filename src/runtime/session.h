// One sequence driven by hand: its tokens, pages and slot. The engine schedules many; tools and tests drive one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "config/decoder_replay.h"
#include "runtime/executor.h"

namespace senko::runtime {

using config::DecoderReplay;
using config::FirstKeptRow;

// Move-only: owns its pages and its slot.
class Session {
 public:
  // A prompt of `prompt_tokens` will be fed. Errors: kResourceExhausted when no slot is free.
  Session(Executor& executor, cache::SlotPool& slots, int64_t prompt_tokens, DecoderReplay replay);

  // Starts from a prefix-cache hit: `pages` hold the entries of [0, hit), a multiple of the block size above the
  // window; windows are replayed from hit - window (model.md 5.1). `tokens` are the ids of [0, hit).
  void AdoptPrefix(std::span<const int32_t> tokens, std::span<const cache::PageRef> pages);

  // Runs the next `tokens` as one step (at most the executor's max_rows). Rows adopted for replay run first.
  // Returns kept rows. Errors: kResourceExhausted when the pages run out; the session is then as before the call.
  int64_t Feed(std::span<const int32_t> tokens);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::span<const cache::PageRef> pages() const { return pages_; }

 private:
  int64_t Step(int64_t begin, int64_t end);
  void GrowPages();

  Executor& executor_;
  cache::SlotRef slot_;
  std::vector<int32_t> tokens_;
  std::vector<cache::PageRef> pages_;
  std::vector<int32_t> page_table_;
  int64_t replay_start_ = 0;
  int64_t write_floor_ = 0;
  int64_t replay_from_ = -1;  // first row still to be replayed; -1: none
  int64_t keep_begin_ = 0;
  int64_t tail_start_ = 0;
};

}  // namespace senko::runtime
