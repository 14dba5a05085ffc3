// `senko serve`: the parts put together, started, drained.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/routes.h"
#include "base/error.h"
#include "cli/run_context.h"
#include "cli/serve_options.h"
#include "cli/serve_signals.h"
#include "cli/terminal.h"
#include "server/engine_metrics.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/request_lines.h"
#include "text/tokenizer.h"
#include "text/tools_prompt.h"

namespace senko::cli {
namespace {

// What the loading thread has got to, for /ready.
class LoadState {
 public:
  void Set(std::string what) {
    std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }
  std::string Get() const {
    std::lock_guard lock(mutex_);
    return what_;
  }

 private:
  mutable std::mutex mutex_;
  std::string what_ = "starting";
};

// The engine as metrics read it: absent until it is loaded.
class EngineSlot {
 public:
  void Set(Engine* engine) { engine_ = engine; }
  std::optional<EngineStats> Stats() const {
    const Engine* engine = engine_;
    if (engine == nullptr) return std::nullopt;
    return engine->stats();
  }

 private:
  std::atomic<Engine*> engine_{nullptr};
};

// What the engine delivers to must be there until it has stopped, and itself until nobody can call it.
struct EngineEnd {
  const std::unique_ptr<Engine>& engine;
  ~EngineEnd() {
    if (engine) engine->Shutdown();
  }
};

// For the answers of requests that the shutdown cut short to reach their clients.
constexpr std::chrono::seconds kLastWords{2};

std::string Address(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string ModelName(const std::filesystem::path& directory) {
  std::filesystem::path name = std::filesystem::weakly_canonical(directory).filename();
  return name.empty() ? "senko" : name.string();
}

// A client is told that something failed inside; what it was is told here, under the request's id.
void LogFailure(const api::RequestRecord& record) {
  const bool ours = record.status == 500 || (record.status == 200 && record.stream);
  if (record.finish != "error" || !ours) return;
  Tell("request " + record.id + " failed: " + record.error);
}

text::Tokenizer LoadTokenizer(const std::filesystem::path& directory, int64_t vocab) {
  text::Tokenizer tokenizer = text::Tokenizer::FromFile(directory / "tokenizer.json");
  if (tokenizer.vocab_size() > vocab) {
    throw Error(ErrorCode::kCorrupt, (directory / "tokenizer.json").string() + ": has " +
                                         std::to_string(tokenizer.vocab_size()) +
                                         " tokens, the model's vocabulary is " + std::to_string(vocab));
  }
  return tokenizer;
}

// Blocks as large as a long prompt's text or JSON go back to the system when they are freed. Left alone, glibc raises
// these bounds to the largest block it has seen (32 and 64 MiB at most) and keeps as much for the next one.
void ReturnLargeBlocks() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

}  // namespace

// What a program that is started without them opens next would get their numbers, and be written over by a log.
void OpenStandardFiles() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) {
      throw Error(ErrorCode::kIo, std::string("/dev/null: cannot be opened: ") + std::strerror(errno));
    }
  }
}

int RunServe(ServeOptions options) {
  OpenStandardFiles();
  ReturnLargeBlocks();
  std::string& host = options.http.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  RunOptions model;
  model.model = options.engine.model;
  const std::filesystem::path directory = ModelDirectory(model);
  options.engine.model = directory.string();
  if (options.api.model_names.empty()) options.api.model_names = {ModelName(directory)};

  ServeSignals signals([] {
    Tell("stopped before it was ready");
    std::_Exit(0);
  });
  // The server is the last of these, and so the first to go, however this ends: its threads read all the others.
  LoadState state;
  EngineSlot slot;
  const server::HttpServer* listening = nullptr;  // set before its threads are started
  server::MetricsRegistry registry({{"model_name", options.api.model_names.front()}, {"engine", "0"}});
  server::EngineMetrics metrics(
      &registry, [&slot] { return slot.Stats(); },
      [&listening] { return listening != nullptr ? listening->stats() : server::HttpStats{}; });
  std::optional<server::RequestLines> lines;
  if (!options.access_log.empty()) {
    server::LineLog log = server::OpenLineLog(options.access_log);
    lines.emplace(std::move(log.write));
    registry.AddSamples([dropped = std::move(log.dropped)] {
      using Sample = server::MetricsRegistry::Sample;
      return std::vector<Sample>{{Sample::Kind::kCounter, "senko:access_log_dropped_lines_total",
                                  "Lines that the access log lost because nothing took them, or not fast enough",
                                  static_cast<double>(dropped())}};
    });
  }
  std::unique_ptr<Engine> engine;
  std::optional<text::Tokenizer> tokenizer;
  std::optional<text::ToolsPrompt> tools;
  std::optional<api::ApiContext> context;
  const EngineEnd engine_end{engine};
  std::unique_ptr<server::HttpServer> http;

  server::HttpHooks hooks;
  hooks.not_ready = [&state] { return state.Get(); };
  hooks.metrics = [&registry] { return registry.Text(); };
  hooks.version = SENKO_VERSION;
  if (lines) hooks.access_log = [&lines](const server::AccessRecord& record) { lines->OnHttp(record); };
  http = std::make_unique<server::HttpServer>(options.http, std::vector<api::Route>{}, hooks);
  listening = http.get();
  http->Start();
  const std::string address = Address(options.http.host, http->port());
  Tell("listening on " + address + ", loading " + directory.string());

  engine =
      LoadEngine(options.engine, [&state, told = std::string()](const std::string& what, uint64_t, uint64_t) mutable {
        if (what == told) return;
        told = what;
        state.Set("loading: " + what);
        Tell(what);
      });
  tokenizer.emplace(LoadTokenizer(directory, engine->limits().vocab_size));
  tools = text::ToolsPrompt::Find(directory);
  context.emplace(*engine, *tokenizer, tools ? &*tools : nullptr, options.api, &metrics,
                  [&lines](const api::RequestRecord& record) {
                    LogFailure(record);
                    if (lines) lines->OnApi(record);
                  });
  slot.Set(engine.get());
  http->SetRoutes(api::MakeRoutes(*context));
  signals.Serving();
  state.Set("");
  Tell("ready; try: curl " + address + "/v1/models");

  signals.Wait();
  Tell("finishing running requests (at most " + std::to_string(options.shutdown_timeout_s) +
       " s); a second signal ends now");
  std::atomic<bool> cut_short{false};
  signals.OnMore([&] {
    cut_short = true;
    http->Stop();
  });
  const bool all = http->Drain(std::chrono::seconds(options.shutdown_timeout_s));
  if (!all && !cut_short) {
    engine->Shutdown();  // tells whoever is still there that this is the end
    http->Drain(kLastWords);
  }
  signals.OnMore({});
  http->Stop();
  slot.Set(nullptr);
  engine->Shutdown();
  Tell(all && !cut_short ? "all requests finished" : "stopped with requests unfinished");
  return 0;
}

}  // namespace senko::cli
