// A loaded model with threads, pages, slots and an executor, from a command's options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/thread_pool.h"
#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "cli/commands.h"
#include "runtime/backend.h"
#include "runtime/load.h"
#include "runtime/profile.h"
#include "runtime/session.h"

namespace senko::cli {

struct RunContext {
  runtime::LoadedModel loaded;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<runtime::Backend> backend;
  std::unique_ptr<cache::PagePool> pages;
  std::unique_ptr<cache::SlotPool> slots;
  std::unique_ptr<runtime::Executor> executor;
  int64_t most_rows = 0;  // of a step: what was asked for, or the device's default

  const config::ModelConfig& config() const { return loaded.config; }
};

// `options.model`, or the bundled model beside the program. Errors: kNotFound saying how to make it.
std::filesystem::path ModelDirectory(const RunOptions& options);

// Loads the model only. With `profile` every operator is clocked; it outlives the context.
RunContext LoadForRun(const RunOptions& options, runtime::Profile* profile = nullptr);

// Then allocates for `context_tokens` tokens of pages (or --kv-cache-memory-bytes), `slots` slots and steps of at most
// `max_rows` rows, `drawn_rows` of whose logits are held at once. Errors: kResourceExhausted with the sums when the
// pages do not hold the context.
void AllocateForRun(RunContext& context, const RunOptions& options, int64_t context_tokens, int64_t slots,
                    int64_t max_rows, int64_t drawn_rows = 16);

// "trim", "halo", "full"; empty takes `otherwise`. Errors: kInvalidArgument.
runtime::DecoderReplay ParseDecoderReplay(const std::string& name, runtime::DecoderReplay otherwise);

}  // namespace senko::cli
