#include "cli/run_flags.h"

#include <CLI/CLI.hpp>

#include "base/thread_count.h"
#include "cli/whole_number.h"

namespace senko::cli {

void AddRunFlags(CLI::App& app, RunOptions& o) {
  app.add_option("--numerics", o.numerics,
                 "float: float32 with only the KV quantisers; model: every rounding point of the model; model-noaq: "
                 "the same without activation rounding")
      ->capture_default_str();
  app.add_option("--op-impl", o.op_impl, "Run an operator by another backend: OPERATOR=cpu|reference; repeatable");
  app.add_option("--threads", o.threads, "Worker threads; 0 takes every CPU this process may use")
      ->check(Whole(0, kMaxThreads))
      ->capture_default_str();
  app.add_option("--block-size", o.block_size, "Tokens per KV page: 64, 128 or 256")
      ->check(Whole(64, 256))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", o.max_batched_tokens,
                 "Most tokens of one step; 0: 512, or 8192 with --device cuda")
      ->check(Whole(0, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--device", o.device, "cpu or cuda")->capture_default_str();
  app.add_option("--load-format", o.load_format, "auto, or dummy: random weights made on the GPU")
      ->capture_default_str();
  app.add_flag("--cuda-graphs,!--no-cuda-graphs", o.cuda_graphs,
               "Launch each pass as a captured graph (default); without, kernel by kernel");
  app.add_option("--gpu-memory-utilization", o.gpu_memory_utilization, "Part of the GPU's memory to use")
      ->capture_default_str();
}

}  // namespace senko::cli
