#include "cli/run_context.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "cli/terminal.h"

namespace senko::cli {

std::filesystem::path ModelDirectory(const RunOptions& options) {
  if (!options.model.empty()) return options.model;
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path bundled = program.parent_path().parent_path() / "models" / "bundled";
  if (!std::filesystem::exists(bundled / "config.json", ignored)) {
    throw Error(ErrorCode::kNotFound, bundled.string() +
                                          ": no bundled model there; build the target `bundled_model` "
                                          "(./senko.sh build does) or name a checkpoint with --model");
  }
  return bundled;
}

RunContext LoadForRun(const RunOptions& options, runtime::Profile* profile) {
  if (options.block_size != 64 && options.block_size != 128 && options.block_size != 256) {
    throw Error(ErrorCode::kInvalidArgument,
                "--block-size " + std::to_string(options.block_size) + ": must be 64, 128 or 256");
  }
  if (options.max_batched_tokens < 0 || options.max_batched_tokens > (int64_t{1} << 20)) {
    throw Error(ErrorCode::kInvalidArgument, "--max-num-batched-tokens " + std::to_string(options.max_batched_tokens) +
                                                 ": must be between 1 and 1048576, or 0 for the device's default");
  }
  RunContext context;
  runtime::LoadOptions load;
  load.directory = ModelDirectory(options);
  load.numerics = runtime::ParseNumericsMode(options.numerics);
  load.op_impl = options.op_impl;
  load.block_size = options.block_size;
  load.load_format = options.load_format;
  load.profile = profile;
  context.loaded = runtime::LoadModel(load);
  context.pool = std::make_unique<ThreadPool>(options.threads);
  const runtime::BackendOptions device{options.device, options.cuda_graphs, options.gpu_memory_utilization,
                                       !options.op_impl.empty()};
  context.backend = runtime::MakeBackend(device, *context.loaded.model, *context.pool, TerminalProgress());
  context.most_rows =
      options.max_batched_tokens > 0 ? options.max_batched_tokens : runtime::DefaultStepRows(options.device);
  return context;
}

void AllocateForRun(RunContext& context, const RunOptions& options, int64_t context_tokens, int64_t slots,
                    int64_t max_rows, int64_t drawn_rows) {
  const model::Model& model = *context.loaded.model;
  const config::PageLayout& layout = model.page_layout();
  const int64_t needed = (context_tokens + layout.block_size - 1) / layout.block_size;
  int64_t pages = needed;
  if (options.kv_cache_memory_bytes > 0 && layout.page_bytes > 0) {
    // More pages than the sequences' longest contexts need would never be used.
    const int64_t longest = (model.config().max_positions + layout.block_size - 1) / layout.block_size;
    pages = std::min(options.kv_cache_memory_bytes / layout.page_bytes, std::max(needed, slots * longest));
    if (pages < needed) {
      throw Error(ErrorCode::kResourceExhausted,
                  "--kv-cache-memory-bytes " + std::to_string(options.kv_cache_memory_bytes) + " holds " +
                      std::to_string(pages) + " pages of " + std::to_string(layout.page_bytes) + " bytes (" +
                      std::to_string(pages * layout.block_size) + " tokens); this request needs " +
                      std::to_string(needed) + " pages, " + std::to_string(needed * layout.page_bytes) + " bytes");
    }
  }
  runtime::ExecutorLimits limits;
  limits.max_rows = max_rows;
  limits.max_sequences = slots;
  limits.max_drawn_rows = drawn_rows;
  limits.max_positions = std::min(model.config().max_positions, pages * layout.block_size);
  context.backend->CheckCacheBytes(limits, pages * layout.page_bytes + slots * model.slot_layout().slot_bytes);
  context.pages = std::make_unique<cache::PagePool>(layout, pages, context.backend->memory());
  context.slots = std::make_unique<cache::SlotPool>(model.slot_layout(), slots, context.backend->memory());
  context.executor = context.backend->MakeExecutor(*context.pages, limits);
}

runtime::DecoderReplay ParseDecoderReplay(const std::string& name, runtime::DecoderReplay otherwise) {
  if (name.empty()) return otherwise;
  if (name == "trim") return runtime::DecoderReplay::kTrim;
  if (name == "halo") return runtime::DecoderReplay::kHalo;
  if (name == "full") return runtime::DecoderReplay::kFull;
  throw Error(ErrorCode::kInvalidArgument, "--decoder-replay " + name + ": must be trim, halo or full");
}

}  // namespace senko::cli
