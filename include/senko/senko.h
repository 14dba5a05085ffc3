// Senko's public face: load a model, submit token ids, stream tokens back, cancel, read counters. The server, the
// benchmarks and embedding programs come through this door; no third-party type appears in it.
//
// Texts, chats and tools are the `text` room's; from here on a prompt is token ids.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace senko {

// Names are vLLM's flags where the same thing exists. 0 means "choose": the choice is in Limits.
struct EngineOptions {
  std::string model;                    // checkpoint folder
  std::string numerics = "model";       // "model", "model-noaq" or "float"
  std::vector<std::string> op_impl;     // "attention=reference"
  std::string load_format = "auto";     // "dummy": random weights of config.json's shapes, on a GPU only
  std::string device = "cpu";           // "cpu" or "cuda"
  bool cuda_graphs = true;              // false: the same kernels, launched one by one
  double gpu_memory_utilization = 0.9;  // of the GPU's memory, for everything
  int threads = 0;                      // of the CPU backend, and for bringing weights to a GPU
  int64_t block_size = 128;             // tokens of a KV page: 64, 128 or 256
  int64_t kv_cache_memory_bytes = 0;    // pages of global KV and slots of private state together
  // Window snapshots, used without encoder replay only. Unset: twice what the slots take; 0: none, and so no hits.
  std::optional<int64_t> window_snapshot_memory_bytes;
  int64_t max_model_len = 0;                 // tokens of a prompt and its answer together; a last one is never fed
  int64_t max_num_seqs = 64;                 // sequences running at once
  int64_t max_num_batched_tokens = 0;        // rows of a step
  int64_t long_prefill_token_threshold = 0;  // most rows a prompt gets in a step; 0: no such cap
  int64_t max_num_waiting = 1024;            // requests of which nothing has run yet; more are refused as kOverloaded
  bool enable_prefix_caching = true;
  bool encoder_replay = true;           // false: hits only at stored window snapshots, exact
  std::string decoder_replay = "trim";  // "trim", "halo" or "full"
  bool async_scheduling = true;         // plan a step while the one before it runs
};

struct SamplingOptions {
  float temperature = 1;  // below 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  int64_t top_k = 0;  // 0: off
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits
  std::vector<std::vector<int32_t>> bad_words;        // token sequences that must not be completed
  std::optional<uint64_t> seed;                       // none: drawn from the system's entropy
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;  // before it, neither EOS nor a stop token is drawn
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // end the answer; the token itself is reported
  int logprobs = -1;                    // alternatives per token; -1: no logprobs at all
  int prompt_logprobs = -1;             // the same for the prompt; switches hits and trimming off
};

inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxChoices = 128;

struct GenerationRequest {
  std::string id;  // for logs
  std::vector<int32_t> prompt;
  int n = 1;               // choices; they share the prompt's pages
  int priority = 0;        // lower runs earlier
  std::string cache_salt;  // requests share cached prefixes with equal salts only
  SamplingOptions sampling;
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;  // natural logarithm, of the distribution before temperature, penalties and cuts
  int64_t rank = 0;   // 1: the most likely
};

struct TokenOutput {
  int32_t token = -1;
  std::optional<TokenLogprob> logprob;  // of this token
  std::vector<TokenLogprob> top;        // the most likely ones
};

enum class FinishReason {
  kStop,       // EOS, a stop token or Stop()
  kLength,     // max_tokens or the model's length
  kCancelled,  // Cancel()
  kError,      // this request failed; others go on
};

struct OutputChunk {
  int choice = 0;
  std::vector<TokenOutput> tokens;  // EOS included when it ended the answer
  std::optional<FinishReason> finish;
  std::optional<int32_t> stop_token;  // which token ended it
  std::string error;                  // with kError
  bool request_fault = false;         // with kError: by what the request asked for; `error` names its fields
};

struct RequestUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, adopted from the prefix cache (hit length, replayed rows included)
};

// Receives one request's output. Calls come from the engine's thread, one at a time. They must not block, and must not
// throw: an exception out of one ends the process.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  // Admitted: rows of it run in the coming step. Called again after a preemption with `resumed`.
  virtual void OnScheduled(const RequestUsage& usage, bool resumed) = 0;
  // Before the first OnOutput, when prompt logprobs were asked for; [0] has none.
  virtual void OnPromptLogprobs(std::vector<TokenOutput> prompt) = 0;
  // The last chunk of a choice has `finish`. After all choices have finished nothing more comes.
  virtual void OnOutput(OutputChunk chunk) = 0;
  // Behind the last call that a step makes to any sink, at least once for each sink that it called: whoever has to be
  // woken for output is best woken here, once for all of it.
  virtual void OnStepDelivered() {}
};

// What start-up settled on.
struct EngineLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t window = 0;
  int64_t block_size = 0;
  int64_t max_num_seqs = 0;
  int64_t max_num_waiting = INT64_MAX;  // no client's requests succeed all together if they are more
  int64_t max_num_batched_tokens = 0;
  int64_t num_pages = 0;
  int64_t page_bytes = 0;
  int64_t slot_bytes = 0;
  int32_t eos_token = -1;
  int32_t image_token = -1;  // refused in prompts
};

// Counters since start unless said otherwise. Times are seconds.
struct EngineStats {
  int64_t running = 0;       // now
  int64_t waiting = 0;       // now; requests of which nothing has run yet
  int64_t pages_in_use = 0;  // now; referenced by running sequences
  int64_t pages_cached = 0;  // now; unreferenced, still hits
  int64_t num_pages = 0;
  int64_t slots_in_use = 0;
  int64_t workspace_bytes = 0;  // fixed at start: activations and logits of a step, whatever the context
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;  // of admitted requests
  uint64_t generation_tokens = 0;
  uint64_t prefix_queries = 0;   // tokens looked up
  uint64_t prefix_hits = 0;      // tokens adopted
  uint64_t replayed_tokens = 0;  // rows run again for their windows
  uint64_t trimmed_rows = 0;     // rows that skipped the decoder pass
  uint64_t encoder_rows = 0;
  uint64_t decoder_rows = 0;
  double model_seconds = 0;  // in the passes and the head
  double sampler_seconds = 0;
  double compute_cpu_seconds = 0;  // CPU time of all threads that run a step, while they do: model and sampler
};

// Thread-safe. Errors are senko::Error (base/error.h).
class Engine {
 public:
  virtual ~Engine() = default;

  // Returns the request's handle. Errors: kInvalidArgument naming the field (an id outside the vocabulary, a prompt
  // that exceeds max_model_len, ...); kOverloaded when too many requests wait or the engine is shutting down. Nothing
  // of a refused request remains.
  virtual uint64_t Submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) = 0;
  // Ends one choice as kStop: a stop string was seen in what it wrote; tokens not yet delivered are dropped.
  virtual void Stop(uint64_t request, int choice) = 0;
  // Ends all choices as kCancelled within a step. Unknown handles are ignored.
  virtual void Cancel(uint64_t request) = 0;
  // Cancels everything and joins the engine's threads; Submit refuses from here on.
  virtual void Shutdown() = 0;

  virtual const EngineLimits& limits() const = 0;
  virtual EngineStats stats() const = 0;
};

// "weights", 3, 10: for a person at a terminal. May be empty.
using LoadProgress = std::function<void(const std::string& what, uint64_t done, uint64_t total)>;

// Checks the checkpoint, sizes and allocates the caches and starts the engine's thread. Errors: senko::Error naming
// file, tensor, field or flag; kResourceExhausted with the sums and the largest setting that fits.
std::unique_ptr<Engine> LoadEngine(const EngineOptions& options, const LoadProgress& progress = {});

}  // namespace senko
