// What `senko bench` and `senko profile` are asked for. Each command returns the process's exit code or throws
// senko::Error for what the user can fix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace senko::cli {

// Of every benchmark that runs a model.
struct BenchTarget {
  RunOptions run;
  std::string config;  // a random model of these dimensions, made under the cache folder
  bool json = false;
};

struct BenchDecodeOptions {
  BenchTarget target;
  std::vector<int64_t> batch = {1};       // sequences
  std::vector<int64_t> context = {2048};  // tokens of each, whole pages
  int64_t rows = 1;                       // of each in a step
  int64_t decode_tokens = 32;             // steps
};
int RunBenchDecode(const BenchDecodeOptions& options);

struct BenchPrefillOptions {
  BenchTarget target;
  int64_t prompt_tokens = 2048;
  int repeats = 3;
};
int RunBenchPrefill(const BenchPrefillOptions& options);

struct BenchTtftOptions {
  BenchTarget target;
  std::vector<int64_t> prompt_tokens;  // both empty: both experiments, at lengths for the device
  std::vector<int64_t> cached_tokens;
  int64_t new_tokens = 512;
  int repeats = 5;
};
int RunBenchTtft(const BenchTtftOptions& options);

struct BenchMixedOptions {
  BenchTarget target;
  std::vector<int64_t> budgets = {512, 2048, 8192};
  int64_t prompt_tokens = 0;  // 0: 131,072 on a GPU, 8,192 on a CPU
  int64_t stream_tokens = 1024;
  int64_t quiet_tokens = 32;
};
int RunBenchMixed(const BenchMixedOptions& options);

struct BenchOpsOptions {
  std::string filter;
  std::string device = "cpu";
  int threads = 0;
  bool json = false;
};
int RunBenchOps(const BenchOpsOptions& options);

struct ProfileStepOptions {
  RunOptions run;
  int64_t batch = 1;       // sequences
  int64_t context = 8192;  // tokens before the step
  int64_t rows = 1;        // of each in the step
  bool json = false;
};
int RunProfileStep(const ProfileStepOptions& options);

// What the command line has filled.
struct BenchOptions {
  BenchDecodeOptions decode;
  BenchPrefillOptions prefill;
  BenchTtftOptions ttft;
  BenchMixedOptions mixed;
  BenchOpsOptions ops;
  ProfileStepOptions profile_step;
  int (*chosen)(const BenchOptions&) = nullptr;
};

}  // namespace senko::cli
