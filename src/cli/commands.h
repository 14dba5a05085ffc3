// The subcommands, free of command-line parsing. Each returns the process's exit code (architecture.md section 6) or
// throws senko::Error for what the user can fix.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace senko::cli {

// Shared by the commands that run a model.
struct RunOptions {
  std::string model;  // empty: the bundled model
  std::string numerics = "model";
  std::vector<std::string> op_impl;
  int threads = 0;  // 0: every CPU this process may use
  int64_t block_size = 128;
  int64_t max_batched_tokens = 0;  // 0: runtime::DefaultStepRows
  std::string load_format = "auto";
  std::string device = "cpu";
  bool cuda_graphs = true;
  double gpu_memory_utilization = 0.9;
  int64_t kv_cache_memory_bytes = 0;  // 0: what the request needs
  std::string decoder_replay;         // empty: trim for generate, full for logits
};

struct GenerateOptions {
  RunOptions run;
  std::string prompt;
  std::string prompt_file;
  std::string token_ids;  // "1,2,3"
  bool chat = false;
  bool thinking = false;
  int64_t max_tokens = 128;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool json = false;
};
int RunGenerate(const GenerateOptions& options);

struct LogitsOptions {
  RunOptions run;
  std::string tokens;  // JSON file {"prompts": [[ids], ...]}
  std::string out;
  std::vector<int64_t> chunks;
  int64_t encoder_replay = 0;  // hit length H; 0: off
  std::string dump;
  int64_t dump_from = 0;
  std::string inject;
};
int RunLogits(const LogitsOptions& options);

struct EvalReplayOptions {
  RunOptions run;
  std::string text;           // file
  std::string tokens;         // or a JSON file {"prompts": [[ids], ...]}: the first
  int64_t prompt_tokens = 0;  // 0: all but the last quarter, at most 256 tokens
  std::vector<int64_t> hits;  // empty: the longest possible and half of it
  bool json = false;
};
int RunEvalReplay(const EvalReplayOptions& options);

}  // namespace senko::cli
