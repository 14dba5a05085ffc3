// A scheduler with a model of hashes behind it, driven step by step by the tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "engine/ghost_model.h"
#include "engine/scheduler.h"

namespace senko::engine {

inline constexpr int32_t kVocab = 1 << 20;  // draws practically never meet a stop token by chance

struct Rig {
  ghost::Shape shape;
  config::ModelConfig config;
  std::optional<cache::PagePool> pages;
  std::optional<cache::SlotPool> slots;
  std::optional<cache::SnapshotStore> snapshots;
  std::optional<ghost::Executor> executor;
  std::optional<Scheduler> scheduler;
  std::map<uint64_t, std::vector<int32_t>> tokens;
  std::map<uint64_t, Finish> finished;
  std::map<uint64_t, int64_t> cached;
  std::vector<StepPlan> plans;  // all that ran

  explicit Rig(SchedulerOptions options = {}, int64_t window = 32, int64_t block = 16, int64_t num_pages = 64,
               int64_t num_slots = 4, int64_t num_snapshots = 0) {
    shape.window = window;
    shape.block_size = block;
    shape.ring_rows = window + options.verify_rows;
    shape.pending_rows = 1 + options.verify_rows / 2;
    config.window = window;
    config.max_positions = 1 << 20;
    config.num_layers = ghost::kLayers;
    config.kv_sources = {0, ghost::kSeam};
    config.engram.max_ngram = 4;
    if (options.max_model_len == 0) options.max_model_len = num_pages * block;
    pages.emplace(ghost::PageLayoutOf(shape), num_pages);
    slots.emplace(ghost::SlotLayoutOf(shape), num_slots);
    snapshots.emplace(ghost::SlotLayoutOf(shape), num_snapshots * ghost::SlotLayoutOf(shape).slot_bytes);
    executor.emplace(shape, *pages, *slots, *snapshots, kVocab);
    scheduler.emplace(config, options, *pages, *slots, *snapshots);
  }

  static Request MakeRequest(uint64_t id, int64_t prompt, int64_t max_tokens, int32_t first = 0) {
    Request request;
    request.id = id;
    for (int64_t i = 0; i < prompt; ++i) request.prompt.ids.push_back(first + static_cast<int32_t>(i));
    request.max_tokens = max_tokens;
    return request;
  }
  void Events() {
    for (const Event& event : scheduler->TakeEvents()) {
      if (event.kind == Event::Kind::kToken) tokens[event.sequence].push_back(event.token);
      if (event.kind == Event::Kind::kFinished) finished[event.sequence] = event.finish;
      if (event.kind == Event::Kind::kScheduled && !event.resumed) cached[event.sequence] = event.cached_tokens;
    }
  }
  // One step from plan to advance. False: there was nothing to plan.
  bool Step(const std::function<void(StepResult&)>& change = {}) {
    auto plan = scheduler->Plan();
    Events();
    if (!plan) return false;
    StepResult result = executor->Run(*plan, 0, 0);
    if (change) change(result);
    plans.push_back(std::move(*plan));
    scheduler->Advance(result);
    Events();
    return true;
  }
  void RunOut() {
    while (Step()) {
    }
    EXPECT_TRUE(scheduler->idle());
    EXPECT_EQ(pages->free_pages(), pages->num_pages());
    EXPECT_EQ(slots->free_slots(), slots->num_slots());
  }
  void Complete(Request request) {
    scheduler->Add(std::move(request));
    RunOut();
  }
  const PlannedSpan* SpanOf(const StepPlan& plan, uint64_t request, int64_t choice = 0) const {
    for (const PlannedSpan& span : plan.spans) {
      if (span.sequence == SequenceId(request, choice)) return &span;
    }
    return nullptr;
  }
};

}  // namespace senko::engine
