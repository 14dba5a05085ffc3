// What all routes share: the engine, the tokenizer, threads, memory, and where to report.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/call_memory.h"
#include "api/errors.h"
#include "api/exchange.h"
#include "api/metrics.h"
#include "api/workers.h"
#include "senko/senko.h"
#include "text/tokenizer.h"
#include "text/tools_prompt.h"

namespace senko::api {

struct ApiOptions {
  std::vector<std::string> model_names;  // the first is written in answers; requests may name any. Not empty
  bool default_thinking = true;          // of chats that do not say
  bool priorities = false;               // requests may choose theirs; otherwise one that does is refused
  bool keys_share_prefixes = false;      // in the prefix cache; otherwise each API key has its own
  int output_threads = 2;                // detokenize and write events
  int request_threads = 2;               // read, render and tokenize long requests
  size_t max_waiting_requests = 256;     // long ones waiting to be read; more are refused as kOverloaded
  size_t max_waiting_bytes = size_t{256} << 20;
  size_t call_memory_bytes = size_t{64} << 20;
};

// Bodies up to this size are read on the I/O thread that brought them: at most a millisecond.
inline constexpr size_t kInlineBodyBytes = size_t{8} << 10;

struct Incoming;

// Owned by the server; outlives every request. The engine must be shut down before it goes.
class ApiContext {
 public:
  // `tools_prompt` may be null: chats with tools are then refused. `metrics` may be null, `log` empty. All must outlive
  // it.
  ApiContext(Engine& engine, const text::Tokenizer& tokenizer, const text::ToolsPrompt* tools_prompt,
             ApiOptions options, RequestMetrics* metrics = nullptr, RequestLog log = {});
  ~ApiContext();

  Engine& engine() const { return *engine_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  const text::ToolsPrompt* tools_prompt() const { return tools_prompt_; }
  const ApiOptions& options() const { return options_; }
  const EngineLimits& limits() const { return limits_; }
  RequestMetrics* metrics() const { return metrics_; }
  CallMemory& call_memory() { return call_memory_; }
  Workers& output_workers() { return output_workers_; }

  // Runs `work` on the caller's thread or, if `bytes` is much to read, on a worker. Error: kOverloaded.
  void ReadSoon(size_t bytes, std::function<void()> work);
  // Of `incoming`, with what the record does not say about it filled in. Once for each request.
  void Report(const Incoming& incoming, RequestRecord record) const;
  int64_t started() const { return started_; }  // seconds since 1970

 private:
  Engine* engine_;
  const text::Tokenizer* tokenizer_;
  const text::ToolsPrompt* tools_prompt_;
  ApiOptions options_;
  EngineLimits limits_;
  RequestMetrics* metrics_;
  RequestLog log_;
  CallMemory call_memory_;
  std::atomic<size_t> waiting_requests_{0}, waiting_bytes_{0};
  int64_t started_;
  Workers output_workers_, request_workers_;
};

// A request on its way through a route.
struct Incoming {
  ApiContext* context = nullptr;
  HttpRequest http;
  std::shared_ptr<Exchange> exchange;
  std::string_view route;
  ErrorStyle style = ErrorStyle::kOpenAi;
  std::chrono::steady_clock::time_point arrived;
};

double SecondsSince(std::chrono::steady_clock::time_point start);
int64_t UnixSeconds();

}  // namespace senko::api
