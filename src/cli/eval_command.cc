#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "cli/prompt.h"
#include "cli/run_context.h"
#include "cli/terminal.h"
#include "cli/token_file.h"
#include "runtime/replay_error.h"
#include "text/tokenizer.h"

namespace senko::cli {
namespace {

std::vector<int32_t> ReadIds(const EvalReplayOptions& o, const config::ModelConfig& config) {
  if (o.text.empty() == o.tokens.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "give exactly one of --text and --tokens");
  }
  if (!o.tokens.empty()) {
    const auto prompts = ReadTokenFile(o.tokens, config.vocab_size);
    if (prompts.empty()) throw Error(ErrorCode::kInvalidArgument, o.tokens + ": has no prompt");
    return prompts.front();
  }
  const text::Tokenizer tokenizer = text::Tokenizer::FromFile(ModelDirectory(o.run) / "tokenizer.json");
  return tokenizer.Encode(ReadTextFile(o.text, size_t{1} << 30, true), text::AddedTokens::kNone);
}

}  // namespace

int RunEvalReplay(const EvalReplayOptions& options) {
  RunContext run = LoadForRun(options.run);
  const config::ModelConfig& config = run.config();
  const std::vector<int32_t> ids = ReadIds(options, config);
  RefuseImageTokens(ids, config);
  const auto length = static_cast<int64_t>(ids.size());
  if (length > config.max_positions) {
    throw Error(ErrorCode::kInvalidArgument, "the text has " + std::to_string(length) +
                                                 " tokens, the model's context is " +
                                                 std::to_string(config.max_positions));
  }
  // By default the last quarter, at most 256 tokens, is the answer.
  const int64_t prompt =
      options.prompt_tokens > 0 ? options.prompt_tokens : length - std::min<int64_t>(length / 4, 256);
  if (prompt < 1 || prompt > length) {
    throw Error(ErrorCode::kInvalidArgument,
                "--prompt-tokens " + std::to_string(prompt) + ": the text has " + std::to_string(length) + " tokens");
  }
  std::vector<int64_t> hits = options.hits;
  if (hits.empty()) {
    // The longest there can be, and one of half of it.
    const int64_t block = options.run.block_size, longest = (prompt - 1) / block * block,
                  half = longest / 2 / block * block;
    if (half > config.window) hits.push_back(half);
    if (longest > config.window) hits.push_back(longest);
  }
  const int64_t rows = std::min(run.most_rows, prompt);
  AllocateForRun(run, options.run, 2 * length + options.run.block_size, 2, rows);
  const auto errors = runtime::MeasureReplay(*run.executor, *run.slots, ids, prompt, hits, TerminalProgress());
  if (options.json) {
    Json out = {
        {"text_tokens", length}, {"prompt_tokens", prompt}, {"window", config.window}, {"modes", Json::array()}};
    for (const runtime::ReplayError& e : errors) {
      out["modes"].push_back({{"mode", e.mode},
                              {"hit", e.hit},
                              {"rows", e.rows},
                              {"flips", e.flips},
                              {"mean_kl", e.mean_kl},
                              {"largest_kl", e.largest_kl},
                              {"largest_logit_over_rms", e.largest_logit}});
    }
    std::printf("%s\n", DumpJson(out).c_str());
    return 0;
  }
  std::printf("%lld tokens, a prompt of %lld; rows from its last on, against the exact run\n",
              static_cast<long long>(length), static_cast<long long>(prompt));
  std::printf("%-18s %6s %6s %12s %12s %14s\n", "mode", "rows", "flips", "mean KL", "largest KL", "logit / rms");
  for (const runtime::ReplayError& e : errors) {
    std::printf("%-18s %6lld %6lld %12.3e %12.3e %14.3e\n", e.mode.c_str(), static_cast<long long>(e.rows),
                static_cast<long long>(e.flips), e.mean_kl, e.largest_kl, e.largest_logit);
  }
  return 0;
}

}  // namespace senko::cli
