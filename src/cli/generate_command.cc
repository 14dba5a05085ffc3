#include <unistd.h>

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
#include "runtime/generate.h"
#include "runtime/memory_use.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace senko::cli {
namespace {

double PerSecond(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void CheckSampling(const GenerateOptions& o) {
  auto refuse = [](const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); };
  if (!(o.temperature >= 0 && o.temperature <= 1e6)) refuse("--temperature: must be between 0 and 1000000");
  if (!(o.top_p > 0 && o.top_p <= 1)) refuse("--top-p: must be above 0 and at most 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) refuse("--min-p: must be between 0 and 1");
  if (o.top_k < 0) refuse("--top-k: must not be negative");
  if (o.max_tokens < 1) refuse("--max-tokens: must be at least 1");
  const int sources = !o.prompt.empty() + !o.prompt_file.empty() + !o.token_ids.empty();
  if (sources != 1) refuse("give exactly one of --prompt, --prompt-file and --token-ids");
  if (o.chat && !o.token_ids.empty()) refuse("--chat needs text: --prompt or --prompt-file");
  if (o.thinking && !o.chat) refuse("--thinking needs --chat");
}

}  // namespace

int RunGenerate(const GenerateOptions& options) {
  CheckSampling(options);
  RunContext run = LoadForRun(options.run);
  const config::ModelConfig& config = run.config();
  const std::filesystem::path directory = ModelDirectory(options.run);

  std::optional<text::Tokenizer> tokenizer;
  if (std::filesystem::exists(directory / "tokenizer.json") || options.token_ids.empty()) {
    tokenizer.emplace(text::Tokenizer::FromFile(directory / "tokenizer.json"));
  }
  std::vector<int32_t> prompt;
  if (!options.token_ids.empty()) {
    prompt = ParseTokenList(options.token_ids, config.vocab_size);
  } else {
    const std::string user =
        options.prompt_file.empty() ? options.prompt : ReadTextFile(options.prompt_file, size_t{1} << 30, true);
    prompt = EncodePrompt(*tokenizer, user, options.chat, options.thinking);
  }
  RefuseImageTokens(prompt, config);

  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  runtime::CheckContext(config, prompt_tokens, options.max_tokens);
  AllocateForRun(run, options.run, prompt_tokens + options.max_tokens, 1,
                 std::min(run.most_rows, std::max<int64_t>(prompt_tokens, 1)));

  runtime::GenerateParams params;
  params.max_tokens = options.max_tokens;
  params.temperature = static_cast<float>(options.temperature);
  params.top_k = options.top_k;
  params.top_p = static_cast<float>(options.top_p);
  params.min_p = static_cast<float>(options.min_p);
  params.seed = options.seed;
  params.decoder_replay = ParseDecoderReplay(options.run.decoder_replay, runtime::DecoderReplay::kTrim);
  if (!options.ignore_eos) params.end_tokens.push_back(static_cast<int32_t>(config.eos_token_id));

  std::string all_text;
  std::optional<text::Detokenizer> detokenizer;
  if (tokenizer) detokenizer.emplace(*tokenizer);
  text::StopMatcher stops(options.stop);
  auto emit = [&](const std::string& piece) {
    all_text += piece;
    if (options.json) return;
    Print(piece, stdout);
    std::fflush(stdout);
  };
  auto on_token = [&](int32_t id) {
    if (detokenizer) {
      emit(stops.Push(detokenizer->Push(id)));
      return !stops.stopped();
    }
    if (!all_text.empty()) emit(",");
    emit(std::to_string(id));
    return true;
  };
  const runtime::GenerateResult result =
      runtime::Generate(*run.executor, *run.slots, prompt, params, on_token, TerminalProgress());
  if (detokenizer) {
    emit(stops.Push(detokenizer->Finish()));
    emit(stops.Finish());
  }

  const int64_t generated = static_cast<int64_t>(result.tokens.size());
  const int64_t weight_bytes = run.loaded.model->weights().ActiveBytes(config.experts_per_token);
  const runtime::MemoryUse memory = runtime::ReadMemoryUse();
  const double prefill_rate = PerSecond(prompt_tokens, result.prefill_seconds);
  const double decode_rate = PerSecond(generated - 1, result.decode_seconds);
  if (options.json) {
    Json json;
    json["text"] = all_text;
    json["token_ids"] = result.tokens;
    json["finish_reason"] = result.finish_reason;
    json["prompt_tokens"] = prompt_tokens;
    json["completion_tokens"] = generated;
    json["prefill_tokens_per_second"] = prefill_rate;
    json["decode_tokens_per_second"] = decode_rate;
    json["weight_bytes_per_token"] = weight_bytes;
    json["kv_bytes_per_token"] = config::KvBytesPerToken(config);
    json["workspace_bytes"] = run.executor->workspace_bytes();
    json["peak_resident_bytes"] = memory.peak_resident_bytes;
    json["anonymous_bytes"] = memory.anonymous_bytes;
    Print(DumpJson(json, 2) + "\n", stdout);
    return 0;
  }
  std::printf("\n");
  std::fprintf(
      stderr,
      "prefill %lld tokens, %.1f tokens/s; decode %lld tokens, %.1f tokens/s; %s\n"
      "weights read per token %.1f MiB; KV %lld bytes per token; peak memory %.1f MiB, of it anonymous %.1f MiB "
      "(workspace %.1f MiB)\n",
      static_cast<long long>(prompt_tokens), prefill_rate, static_cast<long long>(generated), decode_rate,
      result.finish_reason.c_str(), MiB(weight_bytes), static_cast<long long>(config::KvBytesPerToken(config)),
      MiB(memory.peak_resident_bytes), MiB(memory.anonymous_bytes), MiB(run.executor->workspace_bytes()));
  const std::string start = run.backend->DescribeStart();
  if (!start.empty()) std::fprintf(stderr, "start: %s\n", start.c_str());
  return 0;
}

}  // namespace senko::cli
