#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "base/user_cache.h"
#include "bench/batch.h"
#include "bench/cached_prefix.h"
#include "bench/cold_prompt.h"
#include "bench/decode_bench.h"
#include "bench/machine.h"
#include "bench/mixed_bench.h"
#include "bench/op_bench.h"
#include "bench/prefill_bench.h"
#include "checkpoint/make_model.h"
#include "cli/bench_options.h"
#include "cli/interrupt.h"
#include "cli/run_context.h"
#include "cli/terminal.h"
#include "runtime/profile.h"

namespace senko::cli {
namespace {

// A random model of this configuration, made once in the user's cache folder.
std::filesystem::path RandomModel(const std::string& config_file) {
  const std::string json = ReadTextFile(config_file, size_t{1} << 20);
  std::filesystem::path folder = UserCacheFolder() / "random-models" / Hex(Sha256(json)).substr(0, 16);
  if (std::filesystem::exists(folder / "model.safetensors")) return folder;
  Print("making a random model of " + config_file + " in " + folder.string() + "\n", stderr);
  checkpoint::MakeModelOptions make;
  make.config = config_file;
  make.out = folder;
  make.seed = 1;
  std::ostringstream summary;
  const UnwindOnSignals unwind(TerminalProgress());
  checkpoint::MakeModel(make, summary, unwind.sink());
  return folder;
}

// The options with the model that they mean.
RunOptions Resolve(const BenchTarget& target) {
  if (!target.config.empty() && !target.run.model.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "give --model or --config, not both");
  }
  RunOptions run = target.run;
  if (!target.config.empty()) run.model = RandomModel(target.config).string();
  return run;
}

void CheckLength(const RunContext& run, int64_t tokens) {
  if (tokens <= run.config().max_positions) return;
  throw Error(ErrorCode::kInvalidArgument, std::to_string(tokens) + " tokens exceed the model's context of " +
                                               std::to_string(run.config().max_positions));
}

int64_t Largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

void Show(bool json, const Json& object, const std::string& text) {
  std::printf("%s", json ? (DumpJson(object, 2) + "\n").c_str() : text.c_str());
}

}  // namespace

int RunBenchDecode(const BenchDecodeOptions& options) {
  const RunOptions flags = Resolve(options.target);
  runtime::Profile profile;
  RunContext run = LoadForRun(flags, &profile);
  const config::PageLayout& layout = run.loaded.model->page_layout();
  for (const int64_t context : options.context) {
    if (context % layout.block_size == 0) continue;
    throw Error(ErrorCode::kInvalidArgument, "--context " + std::to_string(context) +
                                                 ": must be a multiple of the page's " +
                                                 std::to_string(layout.block_size) + " tokens");
  }
  const int64_t batch = Largest(options.batch), context = Largest(options.context), rows = batch * options.rows;
  const int64_t fed = bench::DecodeTokens(options.decode_tokens, options.rows);
  CheckLength(run, context + fed);
  if (rows > run.most_rows) {
    throw Error(ErrorCode::kInvalidArgument, "--batch times --rows is above --max-num-batched-tokens");
  }
  const bench::Machine machine = bench::MeasureMachine(flags.device, *run.pool);
  AllocateForRun(run, flags, bench::Batch::Pages(layout, batch, context, fed) * layout.block_size, batch,
                 std::min(run.most_rows, std::max(context, rows)), rows);
  const bench::DecodeBenchParams params{options.batch, options.context, options.rows, options.decode_tokens};
  const auto results = bench::BenchDecode(*run.executor, *run.slots, params, machine, profile, TerminalProgress());
  Show(options.target.json,
       {{"benchmark", "decode"}, {"machine", bench::ToJson(machine)}, {"results", bench::ToJson(results)}},
       bench::ToText(machine) + bench::ToText(results));
  return 0;
}

int RunBenchPrefill(const BenchPrefillOptions& options) {
  const RunOptions flags = Resolve(options.target);
  if (flags.device == "cuda") {
    throw Error(
        ErrorCode::kUnsupported,
        "`senko bench prefill` clocks the CPU's operators; `senko bench ttft --prompt-tokens` and `senko profile "
        "step --rows` clock a GPU");
  }
  runtime::Profile profile;
  RunContext run = LoadForRun(flags, &profile);
  CheckLength(run, options.prompt_tokens);
  AllocateForRun(run, flags, options.prompt_tokens, 1, std::min(run.most_rows, options.prompt_tokens));
  const bench::Machine machine = bench::MeasureMachine(*run.pool);
  const bench::PrefillBenchParams params{options.prompt_tokens, options.repeats};
  const auto result = bench::BenchPrefill(*run.executor, *run.slots, params, machine, profile);
  Json json = {{"benchmark", "prefill"}, {"machine", bench::ToJson(machine)}};
  json.update(bench::ToJson(result));
  Show(options.target.json, json, bench::ToText(machine) + bench::ToText(result));
  return 0;
}

int RunBenchTtft(const BenchTtftOptions& given) {
  BenchTtftOptions options = given;
  const RunOptions flags = Resolve(options.target);
  if (options.prompt_tokens.empty() && options.cached_tokens.empty()) {
    const bool gpu = flags.device == "cuda";
    options.prompt_tokens =
        gpu ? std::vector<int64_t>{1024, 4096, 8192, 32768, 131072} : std::vector<int64_t>{1024, 4096};
    options.cached_tokens =
        gpu ? std::vector<int64_t>{8192, 32768, 131072, 262144} : std::vector<int64_t>{1024, 4096, 16384};
  }
  runtime::Profile profile;
  RunContext run = LoadForRun(flags, &profile);
  const int64_t window = run.config().window, block = flags.block_size;
  for (const int64_t cached : options.cached_tokens) {
    if (cached % block == 0 && cached > window) continue;
    throw Error(ErrorCode::kInvalidArgument, "--cached-tokens " + std::to_string(cached) +
                                                 ": must be a multiple of the page's " + std::to_string(block) +
                                                 " tokens and above the window of " + std::to_string(window));
  }
  int64_t tokens = Largest(options.prompt_tokens);
  if (!options.cached_tokens.empty()) {
    tokens = std::max(tokens, Largest(options.cached_tokens) + options.new_tokens + 1);
  }
  CheckLength(run, tokens);
  AllocateForRun(run, flags, tokens, 1, run.most_rows);
  Json json = {{"benchmark", "ttft"}, {"device", flags.device}, {"window", window}};
  std::string text;
  if (!options.prompt_tokens.empty()) {
    const auto cold =
        bench::BenchColdPrompts(*run.executor, *run.slots, options.prompt_tokens, options.repeats, TerminalProgress());
    json["cold"] = bench::ToJson(cold);
    text += "cold prompts\n" + bench::ToText(cold);
  }
  if (!options.cached_tokens.empty()) {
    const bench::CachedPrefixParams params{options.cached_tokens, options.new_tokens, options.repeats};
    const auto cached = bench::BenchCachedPrefix(*run.executor, *run.slots, params, profile, TerminalProgress());
    json["cached"] = bench::ToJson(cached);
    json["cached"]["new_tokens"] = options.new_tokens;
    text += "cached prefixes, window " + std::to_string(window) + ", " + std::to_string(options.new_tokens) +
            " new tokens\n" + bench::ToText(cached);
  }
  Show(options.target.json, json, text);
  return 0;
}

int RunBenchMixed(const BenchMixedOptions& options) {
  const RunOptions flags = Resolve(options.target);
  EngineOptions engine;
  engine.model = ModelDirectory(flags).string();
  engine.numerics = flags.numerics;
  engine.op_impl = flags.op_impl;
  engine.load_format = flags.load_format;
  engine.device = flags.device;
  engine.cuda_graphs = flags.cuda_graphs;
  engine.gpu_memory_utilization = flags.gpu_memory_utilization;
  engine.threads = flags.threads;
  engine.block_size = flags.block_size;
  if (flags.max_batched_tokens != 0) {
    throw Error(ErrorCode::kInvalidArgument, "--max-num-batched-tokens: --budgets says how many rows a step has");
  }
  const int64_t longest = flags.device == "cuda" ? 131072 : 8192;
  const int64_t prompt_tokens = options.prompt_tokens > 0 ? options.prompt_tokens : longest;
  const bench::MixedBenchParams params{options.budgets, prompt_tokens, options.stream_tokens, options.quiet_tokens};
  const auto results = bench::BenchMixed(engine, params, TerminalProgress());
  Show(options.target.json,
       {{"benchmark", "mixed"},
        {"device", flags.device},
        {"prompt_tokens", prompt_tokens},
        {"stream_tokens", options.stream_tokens},
        {"results", bench::ToJson(results)}},
       bench::ToText(results));
  return 0;
}

int RunBenchOps(const BenchOpsOptions& options) {
  ThreadPool pool(options.threads);
  const bench::Machine machine = bench::MeasureMachine(options.device, pool);
  if (!options.json) std::printf("%s", bench::ToText(machine).c_str());
  const std::vector<bench::OpResult> results =
      machine.gpu ? bench::RunGpuOpCases(options.filter, machine) : bench::RunOpCases(options.filter, machine, pool);
  if (results.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--filter " + options.filter + ": no operator case has that in its name");
  }
  Show(options.json, {{"benchmark", "ops"}, {"machine", bench::ToJson(machine)}, {"ops", bench::ToJson(results)}},
       bench::ToText(results));
  return 0;
}

}  // namespace senko::cli
