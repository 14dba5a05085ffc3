#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "cli/dump_probe.h"
#include "cli/interrupt.h"
#include "cli/run_context.h"
#include "cli/terminal.h"
#include "cli/token_file.h"
#include "runtime/prompt_runner.h"

namespace senko::cli {
namespace {

// First position whose logits come out: not trimmed, not replayed.
int64_t FirstRow(const config::ModelConfig& config, int64_t prompt, runtime::DecoderReplay replay, int64_t hit) {
  return std::max(runtime::FirstKeptRow(config, prompt, replay), hit);
}

struct PromptOutput {
  size_t positions = 0;  // tensor indices of the writer
  size_t logits = 0;
};

}  // namespace

int RunLogits(const LogitsOptions& options) {
  for (int64_t c : options.chunks) {
    if (c < 1) throw Error(ErrorCode::kInvalidArgument, "--chunks: " + std::to_string(c) + " is not a positive size");
  }
  RunContext run = LoadForRun(options.run);
  const config::ModelConfig& config = run.config();
  const runtime::DecoderReplay replay = ParseDecoderReplay(options.run.decoder_replay, runtime::DecoderReplay::kFull);
  const auto prompts = ReadTokenFile(options.tokens, config.vocab_size);
  const int64_t hit = options.encoder_replay;
  if (hit != 0 && (hit % options.run.block_size != 0 || hit <= config.window)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--encoder-replay " + std::to_string(hit) + ": must be a multiple of --block-size " +
                    std::to_string(options.run.block_size) + " above the window of " + std::to_string(config.window));
  }
  int64_t longest = 0;
  for (size_t k = 0; k < prompts.size(); ++k) {
    const int64_t length = static_cast<int64_t>(prompts[k].size());
    longest = std::max(longest, length);
    if (length > config.max_positions) {
      throw Error(ErrorCode::kInvalidArgument, options.tokens + ": prompts[" + std::to_string(k) + "] has " +
                                                   std::to_string(length) + " tokens, the model's context is " +
                                                   std::to_string(config.max_positions));
    }
    if (hit >= length) {
      throw Error(ErrorCode::kInvalidArgument, "--encoder-replay " + std::to_string(hit) + ": prompts[" +
                                                   std::to_string(k) + "] has only " + std::to_string(length) +
                                                   " tokens, and at least one must be new");
    }
  }
  const int64_t whole = std::min(longest, run.most_rows);
  const int64_t largest = options.chunks.empty()
                              ? whole
                              : std::min(longest, *std::max_element(options.chunks.begin(), options.chunks.end()));
  AllocateForRun(run, options.run, (hit != 0 ? 2 : 1) * longest + options.run.block_size, 1,
                 std::max(largest, int64_t{1}));

  std::vector<checkpoint::TensorSpec> specs;
  std::vector<PromptOutput> outputs;
  for (size_t k = 0; k < prompts.size(); ++k) {
    const int64_t length = static_cast<int64_t>(prompts[k].size());
    const int64_t rows = length - FirstRow(config, length, replay, hit);
    const std::string name = "prompt_" + std::to_string(k);
    outputs.push_back({specs.size(), specs.size() + 1});
    specs.push_back({name + ".positions", DType::kI64, {rows}});
    specs.push_back({name + ".logits", DType::kF32, {rows, config.vocab_size}});
  }
  const UnwindOnSignals unwind(TerminalProgress());  // before what it unwinds
  checkpoint::SafetensorsWriter writer(options.out, specs);
  DumpProbe probe(options.dump, options.dump_from, options.inject);
  const bool probing = !options.dump.empty() || !options.inject.empty();

  // Logits leave in blocks of rows, so memory does not grow with the prompt.
  const int64_t block = std::clamp<int64_t>((int64_t{16} << 20) / (config.vocab_size * 4), 1, largest);
  std::vector<float> logits(static_cast<size_t>(block * config.vocab_size));
  std::vector<uint8_t> finite(static_cast<size_t>(block));
  engine::SchedulerOptions scheduling;
  scheduling.max_rows = std::max(largest, int64_t{1});
  scheduling.max_model_len = std::max(longest, int64_t{1}) + 1;
  scheduling.decoder_replay = replay;
  runtime::PromptRunner runner(*run.executor, *run.slots, scheduling);
  const std::vector<int64_t> pieces =
      options.chunks.empty() ? std::vector<int64_t>{scheduling.max_rows} : options.chunks;
  int status = 0;
  for (size_t k = 0; k < prompts.size(); ++k) {
    const std::span<const int32_t> prompt(prompts[k]);
    const int64_t length = static_cast<int64_t>(prompt.size());
    const int64_t first = FirstRow(config, length, replay, hit);
    const std::string salt = std::to_string(k);  // prompts do not meet
    if (hit != 0) runner.Run(prompt.first(static_cast<size_t>(hit)), pieces, salt, {});
    if (probing) {
      probe.BeginPrompt(static_cast<int64_t>(k));
      run.executor->set_probe(&probe);
    }
    int64_t written = 0, first_bad = -1;
    int64_t seen = 0;
    const int64_t found = runner.Run(prompt, pieces, salt, [&](std::span<const int64_t> positions) {
      const auto kept = static_cast<int64_t>(positions.size());
      // Replayed rows come first; what they say is nobody's.
      const int64_t skipped = std::lower_bound(positions.begin(), positions.end(), first) - positions.begin();
      for (int64_t at = skipped; at < kept; at += block) {
        const int64_t count = std::min(block, kept - at);
        run.executor->Logits(at, count, logits.data(), finite.data());
        for (int64_t r = 0; r < count; ++r) {
          const int64_t position = positions[static_cast<size_t>(at + r)];
          const uint64_t row = static_cast<uint64_t>(position - first);
          const std::span<const float> values(logits.data() + r * config.vocab_size,
                                              static_cast<size_t>(config.vocab_size));
          writer.Write(outputs[k].positions, row * sizeof(int64_t), std::as_bytes(std::span(&position, 1)));
          writer.Write(outputs[k].logits, row * values.size_bytes(), std::as_bytes(values));
          ++written;
          if (finite[static_cast<size_t>(r)] == 0 && first_bad < 0) first_bad = position;
        }
      }
      if (kept > 0) seen = positions.back() + 1;
      unwind.sink()({"logits", static_cast<uint64_t>(seen), static_cast<uint64_t>(length), "tokens"});
    });
    if (found != hit) throw std::logic_error("logits: the scheduler adopted another hit than was asked for");
    if (first_bad >= 0) {
      std::fprintf(stderr, "senko: prompt_%zu: from position %lld on logits are NaN or infinite\n", k,
                   static_cast<long long>(first_bad));
      status = 2;
    }
    if (written != length - first) throw std::logic_error("logits: rows that ran differ from the rows announced");
    if (probing) {
      run.executor->set_probe(nullptr);
      probe.EndPrompt();
    }
  }
  writer.Finish();
  return status;
}

}  // namespace senko::cli
