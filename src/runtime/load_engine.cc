// senko::LoadEngine: options to a running engine.
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "base/error.h"
#include "runtime/engine_core.h"

namespace senko {
namespace {

void Between(const char* flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(flag) + " " + std::to_string(value) + ": must be between " +
                                               std::to_string(least) + " and " + std::to_string(most));
}

std::string Seconds(std::chrono::steady_clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f s", std::chrono::duration<double>(time).count());
  return text;
}

constexpr int64_t kMany = int64_t{1} << 20;
constexpr int64_t kMuch = int64_t{1} << 50;

}  // namespace

std::unique_ptr<Engine> LoadEngine(const EngineOptions& given, const LoadProgress& progress) {
  EngineOptions options = given;
  if (options.max_num_batched_tokens == 0) options.max_num_batched_tokens = runtime::DefaultStepRows(options.device);
  if (options.block_size != 64 && options.block_size != 128 && options.block_size != 256) {
    throw Error(ErrorCode::kInvalidArgument,
                "--block-size " + std::to_string(options.block_size) + ": must be 64, 128 or 256");
  }
  Between("--max-num-seqs", options.max_num_seqs, 1, 4096);
  Between("--max-num-batched-tokens", options.max_num_batched_tokens, 1, kMany);
  Between("--long-prefill-token-threshold", options.long_prefill_token_threshold, 0, kMany);
  Between("--max-num-waiting", options.max_num_waiting, 1, kMany);
  Between("--kv-cache-memory-bytes", options.kv_cache_memory_bytes, 0, kMuch);
  Between("--window-snapshot-memory-bytes", options.window_snapshot_memory_bytes.value_or(0), 0, kMuch);
  Between("--max-model-len", options.max_model_len, 0, kMuch);
  Between("--threads", options.threads, 0, 4096);
  config::ParseDecoderReplay(options.decoder_replay);

  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  if (progress) progress("checking the checkpoint", 0, 0);
  runtime::LoadOptions load;
  load.directory = options.model;
  load.numerics = runtime::ParseNumericsMode(options.numerics);
  load.op_impl = options.op_impl;
  load.block_size = options.block_size;
  load.load_format = options.load_format;
  runtime::LoadedModel loaded = runtime::LoadModel(load);
  const auto checked = Clock::now();

  auto pool = std::make_unique<ThreadPool>(options.threads);
  const runtime::BackendOptions device{options.device, options.cuda_graphs, options.gpu_memory_utilization,
                                       !options.op_impl.empty()};
  std::unique_ptr<runtime::Backend> backend =
      runtime::MakeBackend(device, *loaded.model, *pool, [&progress](const Progress& p) {
        if (progress) progress(p.what, static_cast<int64_t>(p.done), static_cast<int64_t>(p.total));
      });

  runtime::MemoryRequest memory;
  memory.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  memory.max_model_len = options.max_model_len;
  memory.max_num_seqs = options.max_num_seqs;
  memory.max_positions = loaded.config.max_positions;
  const runtime::ExecutorLimits limits = runtime::EngineCore::StepLimits(options, *loaded.model);
  memory.default_bytes = backend->DefaultCacheBytes(limits);
  memory.default_name = options.device == "cuda" ? "what is left of the GPU's memory" : "a quarter of the free memory";
  const std::string description = backend->Describe(limits);
  if (progress && !description.empty()) progress(description, 1, 1);
  const int64_t snapshots =
      runtime::EngineCore::SnapshotBytes(options, options.max_num_seqs * loaded.model->slot_layout().slot_bytes);
  memory.default_bytes -= snapshots;
  const runtime::MemoryPlan plan =
      runtime::PlanMemory(loaded.model->page_layout(), loaded.model->slot_layout(), memory);
  backend->CheckCacheBytes(limits, plan.slot_bytes + plan.page_bytes + snapshots);
  if (progress) progress(plan.ToString(), 1, 1);
  const runtime::Backend& started = *backend;
  auto engine =
      std::make_unique<runtime::EngineCore>(options, std::move(loaded), std::move(pool), std::move(backend), plan);
  const std::string parts = started.DescribeStart();
  if (progress && !parts.empty()) {
    progress("started in " + Seconds(Clock::now() - begin) + ": checkpoint " + Seconds(checked - begin) + ", " + parts,
             1, 1);
  }
  return engine;
}

}  // namespace senko
