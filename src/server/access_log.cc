#include "server/access_log.h"

#include <spdlog/async.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/line_writer.h"

namespace senko::server {

std::string AccessLine(const AccessRecord& r, const api::RequestRecord* request) {
  constexpr size_t kMaxText = 256;
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, kMaxText); };
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Json line = {{"time", now},        {"id", cut(r.id)},  {"method", cut(r.method)}, {"path", cut(r.path)},
               {"status", r.status}, {"bytes", r.bytes}, {"seconds", r.seconds},    {"gone", r.gone}};
  if (r.no_room) line["no_room"] = true;
  if (!r.key_hash.empty()) line["key"] = r.key_hash;
  if (request == nullptr) return DumpJson(line);
  line["route"] = request->route;
  line["model"] = cut(request->model);
  line["finish_reason"] = request->finish;
  const auto put_seconds = [&](const char* name, double seconds) {
    if (seconds >= 0) line[name] = seconds;
  };
  if (request->submitted) {
    line["stream"] = request->stream;
    line["choices"] = request->choices;
    line["prompt_tokens"] = request->prompt_tokens;
    line["cached_tokens"] = request->cached_tokens;
    line["completion_tokens"] = request->completion_tokens;
    line["reasoning_tokens"] = request->reasoning_tokens;
    put_seconds("queue_seconds", request->queue_s);
    put_seconds("ttft_seconds", request->first_token_s);
  }
  put_seconds("e2e_seconds", request->total_s);
  return DumpJson(line);
}

namespace {

// Standard error, whose reader may have stopped.
class StandardErrorSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    StandardError().Write({line.data(), line.size()});
  }
  void flush_() override {}
};

}  // namespace

LineLog OpenLineLog(const std::string& path) {
  constexpr size_t kWaitingLines = 8192;
  // Owned together: the logger refers to its pool weakly.
  struct Log {
    std::shared_ptr<spdlog::details::thread_pool> pool;
    std::shared_ptr<spdlog::async_logger> logger;
  };
  const bool to_stderr = path == "-";
  try {
    spdlog::sink_ptr sink;
    if (to_stderr) {
      sink = std::make_shared<StandardErrorSink>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    }
    auto log = std::make_shared<Log>();
    log->pool = std::make_shared<spdlog::details::thread_pool>(kWaitingLines, 1);
    log->logger = std::make_shared<spdlog::async_logger>("access", std::move(sink), log->pool,
                                                         spdlog::async_overflow_policy::overrun_oldest);
    log->logger->set_pattern("%v");
    log->logger->flush_on(spdlog::level::info);
    return {[log](std::string_view line) { log->logger->log(spdlog::level::info, "{}", line); },
            [log, to_stderr] { return log->pool->overrun_counter() + (to_stderr ? StandardError().dropped() : 0); }};
  } catch (const spdlog::spdlog_ex& error) {
    throw Error(ErrorCode::kIo, "--access-log: cannot write '" + path + "': " + error.what());
  }
}

}  // namespace senko::server
