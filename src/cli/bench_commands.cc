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
#include "bench/machine.h"
#include "bench/model_bench.h"
#include "bench/op_bench.h"
#include "bench/replay_bench.h"
#include "bench/ttft_bench.h"
#include "checkpoint/make_model.h"
#include "cli/commands.h"
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

template <typename Bench>
int RunModelBench(BenchModelOptions options, const char* name, Bench bench) {
  if (options.prompt_tokens < 1 || options.decode_tokens < 1 || options.repeats < 1) {
    throw Error(ErrorCode::kInvalidArgument, "--prompt-tokens, --decode-tokens and --repeats must be at least 1");
  }
  if (!options.config.empty() && !options.run.model.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "give --model or --config, not both");
  }
  if (!options.config.empty()) options.run.model = RandomModel(options.config).string();
  runtime::Profile profile;
  RunContext run = LoadForRun(options.run, &profile);
  const int64_t tokens = options.prompt_tokens + options.decode_tokens + 1;
  if (tokens > run.config().max_positions) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(tokens) + " tokens exceed the model's context of " +
                                                 std::to_string(run.config().max_positions));
  }
  AllocateForRun(run, options.run, tokens, 1, std::min(run.most_rows, options.prompt_tokens));
  const bench::Machine machine = bench::MeasureMachine(*run.pool);
  const bench::ModelBenchParams params{options.prompt_tokens, options.decode_tokens, options.repeats};
  const bench::ModelBenchResult result = bench(*run.executor, *run.slots, params, machine, profile);
  if (options.json) {
    Json json = {{"benchmark", name}, {"machine", bench::ToJson(machine)}, {"prompt_tokens", options.prompt_tokens}};
    json.update(bench::ToJson(result));
    std::printf("%s\n", DumpJson(json, 2).c_str());
  } else {
    std::printf("%s%s", bench::ToText(machine).c_str(), bench::ToText(result, machine).c_str());
  }
  return 0;
}

}  // namespace

int RunBenchDecode(const BenchModelOptions& options) { return RunModelBench(options, "decode", bench::BenchDecode); }

int RunBenchPrefill(const BenchModelOptions& options) { return RunModelBench(options, "prefill", bench::BenchPrefill); }

int RunBenchReplay(const BenchReplayOptions& given) {
  BenchReplayOptions options = given;
  if (!options.config.empty() && !options.run.model.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "give --model or --config, not both");
  }
  if (options.prompt_tokens.empty() || options.repeats < 1) {
    throw Error(ErrorCode::kInvalidArgument, "--prompt-tokens and --repeats must not be empty");
  }
  if (!options.config.empty()) options.run.model = RandomModel(options.config).string();
  RunContext run = LoadForRun(options.run);
  const int64_t longest = *std::max_element(options.prompt_tokens.begin(), options.prompt_tokens.end());
  if (longest > run.config().max_positions) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(longest) + " tokens exceed the model's context of " +
                                                 std::to_string(run.config().max_positions));
  }
  AllocateForRun(run, options.run, longest, 1, std::min(run.most_rows, longest));
  const auto results =
      bench::BenchReplay(*run.executor, *run.slots, options.prompt_tokens, options.repeats, TerminalProgress());
  if (options.json) {
    std::printf("%s\n", DumpJson({{"benchmark", "replay"}, {"results", bench::ToJson(results)}}, 2).c_str());
  } else {
    std::printf("%s", bench::ToText(results).c_str());
  }
  return 0;
}

int RunBenchTtft(const BenchTtftOptions& given) {
  BenchTtftOptions options = given;
  if (!options.config.empty() && !options.run.model.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "give --model or --config, not both");
  }
  if (!options.config.empty()) options.run.model = RandomModel(options.config).string();
  runtime::Profile profile;
  RunContext run = LoadForRun(options.run, &profile);
  const int64_t window = run.config().window, block = options.run.block_size;
  for (const int64_t cached : options.cached_tokens) {
    if (cached % block == 0 && cached > window) continue;
    throw Error(ErrorCode::kInvalidArgument, "--cached-tokens " + std::to_string(cached) +
                                                 ": must be a multiple of the page's " + std::to_string(block) +
                                                 " tokens and above the window of " + std::to_string(window));
  }
  const int64_t longest = *std::max_element(options.cached_tokens.begin(), options.cached_tokens.end());
  const int64_t tokens = longest + options.new_tokens + 1;
  if (tokens > run.config().max_positions) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(tokens) + " tokens exceed the model's context of " +
                                                 std::to_string(run.config().max_positions));
  }
  AllocateForRun(run, options.run, tokens, 1, run.most_rows);
  const bench::TtftBenchParams params{options.cached_tokens, options.new_tokens, options.repeats};
  const auto results = bench::BenchTtft(*run.executor, *run.slots, params, profile, TerminalProgress());
  if (options.json) {
    const Json json = {{"benchmark", "ttft"},
                       {"window", window},
                       {"new_tokens", options.new_tokens},
                       {"results", bench::ToJson(results)}};
    std::printf("%s\n", DumpJson(json, 2).c_str());
  } else {
    std::printf("window %lld, %lld new tokens\n%s", static_cast<long long>(window),
                static_cast<long long>(options.new_tokens), bench::ToText(results).c_str());
  }
  return 0;
}

int RunBenchOps(const BenchOpsOptions& options) {
  ThreadPool pool(options.threads);
  const bench::Machine machine = bench::MeasureMachine(pool);
  if (!options.json) std::printf("%s", bench::ToText(machine).c_str());
  std::vector<bench::OpResult> results;
  for (const bench::OpCase& op : bench::OpCases()) {
    if (op.name.find(options.filter) == std::string::npos) continue;
    results.push_back(bench::RunOpCase(op, machine, pool));
  }
  if (results.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--filter " + options.filter + ": no operator case has that in its name");
  }
  if (options.json) {
    const Json json = {{"benchmark", "ops"}, {"machine", bench::ToJson(machine)}, {"ops", bench::ToJson(results)}};
    std::printf("%s\n", DumpJson(json, 2).c_str());
  } else {
    std::printf("%s", bench::ToText(results).c_str());
  }
  return 0;
}

}  // namespace senko::cli
