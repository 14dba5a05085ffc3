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
  std::string inject;
};
int RunLogits(const LogitsOptions& options);

struct BenchModelOptions {
  RunOptions run;
  std::string config;  // a random model of these dimensions, made under the cache folder
  int64_t prompt_tokens = 2048;
  int64_t decode_tokens = 32;
  int repeats = 3;
  bool json = false;
};
int RunBenchDecode(const BenchModelOptions& options);
int RunBenchPrefill(const BenchModelOptions& options);

struct BenchReplayOptions {
  RunOptions run;
  std::string config;  // as above
  std::vector<int64_t> prompt_tokens = {8192, 32768};
  int repeats = 3;
  bool json = false;
};
int RunBenchReplay(const BenchReplayOptions& options);

struct BenchTtftOptions {
  RunOptions run;
  std::string config;  // as above
  std::vector<int64_t> cached_tokens = {1024, 2048, 4096, 8192, 16384, 32768, 65536};
  int64_t new_tokens = 128;
  int repeats = 5;
  bool json = false;
};
int RunBenchTtft(const BenchTtftOptions& options);

struct ProfileStepOptions {
  RunOptions run;
  int64_t batch = 1;       // sequences
  int64_t context = 8192;  // tokens before the step
  int64_t rows = 1;        // of each in the step
  bool json = false;
};
int RunProfileStep(const ProfileStepOptions& options);

struct BenchOpsOptions {
  std::string filter;
  int threads = 0;
  bool json = false;
};
int RunBenchOps(const BenchOpsOptions& options);

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
