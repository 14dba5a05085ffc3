#include "runtime/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "ops/sample/sample.h"
#include "tensor/buffer.h"

namespace senko::runtime {
namespace {

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

void CheckContext(const config::ModelConfig& config, int64_t prompt_tokens, int64_t max_tokens) {
  if (prompt_tokens == 0) throw Error(ErrorCode::kInvalidArgument, "the prompt is empty: there is nothing to continue");
  if (prompt_tokens > config.max_positions || max_tokens > config.max_positions - prompt_tokens) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(prompt_tokens) + " prompt tokens and --max-tokens " +
                                                 std::to_string(max_tokens) + " exceed the model's context of " +
                                                 std::to_string(config.max_positions));
  }
}

GenerateResult Generate(Executor& executor, cache::SlotPool& slots, std::span<const int32_t> prompt,
                        const GenerateParams& params, const std::function<bool(int32_t)>& on_token,
                        const ProgressSink& progress) {
  const config::ModelConfig& config = executor.model().config();
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  CheckContext(config, prompt_tokens, params.max_tokens);
  Session session(executor, slots, prompt_tokens, params.decoder_replay);
  Buffer<float> logits(static_cast<size_t>(config.vocab_size));
  GenerateResult result;
  result.finish_reason = "length";

  auto start = std::chrono::steady_clock::now();
  int64_t kept = 0;
  for (int64_t done = 0; done < prompt_tokens;) {
    const int64_t count = std::min(executor.max_rows(), prompt_tokens - done);
    kept = session.Feed(prompt.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
    done += count;
    if (progress) progress({"prefill", static_cast<uint64_t>(done), static_cast<uint64_t>(prompt_tokens), "tokens"});
  }
  for (int64_t n = 0; n < params.max_tokens; ++n) {
    executor.Logits(kept - 1, 1, logits.data(), nullptr);
    ops::SampleParams sample;
    sample.vocab = config.vocab_size;
    sample.logits = logits.data();
    sample.temperature = params.temperature;
    sample.top_k = params.top_k;
    sample.top_p = params.top_p;
    sample.min_p = params.min_p;
    sample.seed = params.seed;
    sample.position = static_cast<uint64_t>(session.size());
    const int64_t token = ops::SampleCpu(sample);
    if (token < 0) {
      throw Error(ErrorCode::kNumerical, "a logit is NaN or infinite at position " + std::to_string(session.size()) +
                                             "; `senko inspect --scan` checks the weights");
    }
    if (n == 0) {
      result.prefill_seconds = Seconds(start);
      start = std::chrono::steady_clock::now();
    } else {
      result.decode_seconds = Seconds(start);
    }
    const int32_t id = static_cast<int32_t>(token);
    if (std::find(params.end_tokens.begin(), params.end_tokens.end(), id) != params.end_tokens.end()) {
      result.finish_reason = "stop";
      break;
    }
    result.tokens.push_back(id);
    if (!on_token(id)) {
      result.finish_reason = "stop";
      break;
    }
    if (n + 1 < params.max_tokens) kept = session.Feed({&id, 1});
  }
  return result;
}

}  // namespace senko::runtime
