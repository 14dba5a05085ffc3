#include "cli/serve_flags.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "base/thread_count.h"
#include "cli/whole_number.h"

namespace senko::cli {
namespace {

constexpr int64_t kMuch = int64_t{1} << 50, kMany = int64_t{1} << 20;

void AddEngineFlags(CLI::App& c, EngineOptions& o) {
  c.add_option("--model", o.model, "Checkpoint folder; without it the bundled model")->group("Model");
  c.add_option("--numerics", o.numerics, "model, model-noaq or float")->capture_default_str()->group("Model");
  c.add_option("--device", o.device, "cpu or cuda")->capture_default_str()->group("Model");
  c.add_option("--load-format", o.load_format, "auto, or dummy: random weights made on the GPU")
      ->capture_default_str()
      ->group("Model");
  c.add_flag("--cuda-graphs,!--no-cuda-graphs", o.cuda_graphs,
             "Launch each pass as a captured graph (default); without, kernel by kernel")
      ->group("Model");
  c.add_option("--gpu-memory-utilization", o.gpu_memory_utilization, "Part of the GPU's memory to use")
      ->capture_default_str()
      ->group("Cache");
  c.add_option("--op-impl", o.op_impl, "Run an operator by another backend: OPERATOR=cpu|reference; repeatable")
      ->group("Model");
  c.add_option("--threads", o.threads, "Worker threads; 0 takes every CPU this process may use")
      ->check(Whole(0, kMaxThreads))
      ->capture_default_str()
      ->group("Model");
  c.add_option("--max-model-len", o.max_model_len,
               "Most tokens of a prompt and its answer; 0: the model's, or what fits")
      ->check(Whole(0, kMuch))
      ->capture_default_str()
      ->group("Cache");
  c.add_option("--block-size", o.block_size, "Tokens per KV page: 64, 128 or 256")
      ->check(Whole(64, 256))
      ->capture_default_str()
      ->group("Cache");
  c.add_option("--kv-cache-memory-bytes", o.kv_cache_memory_bytes,
               "Memory for KV pages and sequence slots; 0: a quarter of what is free, if so much can be used")
      ->check(Whole(0, kMuch))
      ->capture_default_str()
      ->group("Cache");
  c.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.enable_prefix_caching,
             "Keep the KV of finished prompts and find it again (default)")
      ->group("Cache");
  CLI::Option* replay = c.add_flag_callback(
      "--swa-bounded-replay", [&o] { o.encoder_replay = true, o.decoder_replay = "trim"; },
      "Replay only a window of tokens after a cache hit and run the later layers on a prompt's last window "
      "(default)");
  replay->group("Cache");
  c.add_flag_callback(
       "--no-swa-bounded-replay", [&o] { o.encoder_replay = false, o.decoder_replay = "full"; },
       "Exact: hits only at stored window snapshots, every row through every layer")
      ->excludes(replay)
      ->group("Cache");
  c.add_flag("--encoder-replay,!--no-encoder-replay", o.encoder_replay, "The first half of it alone")->group("Cache");
  c.add_option("--decoder-replay", o.decoder_replay, "The second half alone: trim, halo or full")
      ->capture_default_str()
      ->group("Cache");
  c.add_option("--window-snapshot-memory-bytes", o.window_snapshot_memory_bytes,
               "Memory for window snapshots, used without encoder replay; unless given twice what the slots take")
      ->check(Whole(0, kMuch))
      ->group("Cache");
  c.add_option("--max-num-seqs", o.max_num_seqs, "Most sequences running at once")
      ->check(Whole(1, 4096))
      ->capture_default_str()
      ->group("Scheduling");
  c.add_option("--max-num-batched-tokens", o.max_num_batched_tokens,
               "Most tokens of one step; 0: 512, or 8192 with --device cuda")
      ->check(Whole(0, kMany))
      ->capture_default_str()
      ->group("Scheduling");
  c.add_option("--long-prefill-token-threshold", o.long_prefill_token_threshold,
               "Most tokens of one prompt in a step; 0: half of the step while others want some too")
      ->check(Whole(0, kMany))
      ->capture_default_str()
      ->group("Scheduling");
  c.add_option("--max-num-waiting", o.max_num_waiting, "Most requests waiting; more are refused with 503")
      ->check(Whole(1, kMany))
      ->capture_default_str()
      ->group("Scheduling");
  c.add_flag("--async-scheduling,!--no-async-scheduling", o.async_scheduling,
             "Plan a step while the one before it runs (default)")
      ->group("Scheduling");
}

auto Within(server::Bounds bounds) { return Whole(bounds.low, bounds.high); }

void AddMilliseconds(CLI::App& c, const char* flag, std::chrono::milliseconds& value, const char* help) {
  c.add_option_function<int64_t>(
       flag, [&value](int64_t seconds) { value = std::chrono::seconds(seconds); }, help)
      ->check(Whole(1, 86400))
      ->default_str(std::to_string(value.count() / 1000))
      ->group("HTTP");
}

void AddHttpFlags(CLI::App& c, server::HttpOptions& o) {
  c.add_option("--host", o.host, "Address to listen on; 0.0.0.0 or :: for every interface")
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--port", o.port, "0 lets the system pick one")
      ->check(Within(server::kPorts))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--api-key", o.api_keys, "Require one of these keys on every route but /health; repeatable")
      ->group("HTTP");
  c.add_option("--allowed-origins", o.allowed_origins, "Origins that browsers may call from; repeatable; * for any")
      ->group("HTTP");
  c.add_option("--requests-per-minute", o.requests_per_minute, "Of each key; 0: no limit")
      ->check(Within(server::kRates))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--http-threads", o.io_threads, "Event loops")
      ->check(Within(server::kHttpThreads))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--limit-concurrency", o.max_requests_in_flight, "Most requests at once; more are refused with 503")
      ->check(Within(server::kConnections))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--max-connections", o.max_connections, "Most connections")
      ->check(Within(server::kConnections))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--h11-max-incomplete-event-size", o.max_header_bytes, "Most bytes of a request's head")
      ->check(Within(server::kHeaderBytes))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--h11-max-header-count", o.max_header_count, "Most header lines")
      ->check(Within(server::kHeaderCounts))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--max-body-bytes", o.max_body_bytes, "Of a request")
      ->check(Within(server::kBodyBytes))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--max-buffered-body-bytes", o.max_buffered_body_bytes, "Of all requests not yet answered")
      ->check(Within(server::kBufferedBodyBytes))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--max-buffered-answer-bytes", o.max_buffered_answer_bytes,
               "Of all answers not yet sent; what would go beyond it is refused with 503 (with 400 if it is "
               "larger than all of this), or its stream ends")
      ->check(Within(server::kBufferedAnswerBytes))
      ->capture_default_str()
      ->group("HTTP");
  c.add_option("--max-unsent-bytes", o.max_unsent_bytes,
               "Of a stream; a slower reader counts as gone. Of one event a 128th counts at most")
      ->check(Within(server::kUnsentBytes))
      ->capture_default_str()
      ->group("HTTP");
  AddMilliseconds(c, "--timeout-header", o.timeout_header, "Seconds for a request's head");
  AddMilliseconds(c, "--timeout-body", o.timeout_body, "Seconds for its body");
  AddMilliseconds(c, "--timeout-keep-alive", o.timeout_keep_alive, "Seconds between two requests of a connection");
  AddMilliseconds(c, "--timeout-send", o.timeout_send, "Seconds for a reader that takes nearly nothing");
  AddMilliseconds(c, "--sse-keepalive", o.sse_keepalive, "Seconds of silence before a comment line in a stream");
}

}  // namespace

void AddServeFlags(CLI::App& c, ServeOptions& o) {
  AddEngineFlags(c, o.engine);
  AddHttpFlags(c, o.http);
  c.add_option("--served-model-name", o.api.model_names,
               "Names of the model in the API; the first is written in answers")
      ->check(CLI::Validator([](std::string& name) { return name.empty() ? "must not be empty" : ""; }, ""))
      ->group("API");
  c.add_flag("--default-thinking,!--no-default-thinking", o.api.default_thinking,
             "Chats that do not say reason first (default)")
      ->group("API");
  c.add_flag("--share-prefix-cache-between-keys", o.api.keys_share_prefixes,
             "Whoever has one --api-key can then measure what holders of another have lately sent")
      ->group("API");
  c.add_option_function<std::string>(
       "--scheduling-policy", [&o](const std::string& policy) { o.api.priorities = policy == "priority"; },
       "fcfs: in the order in which requests come; priority: as requests say, lower first, which any client may")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->default_str("fcfs")
      ->group("Scheduling");
  c.add_option("--access-log", o.access_log, "A file; -: standard error; empty: none")
      ->capture_default_str()
      ->group("API");
  c.add_option("--shutdown-timeout", o.shutdown_timeout_s, "Seconds that running requests get after SIGTERM")
      ->check(Whole(0, 86400))
      ->capture_default_str()
      ->group("API");
}

}  // namespace senko::cli
