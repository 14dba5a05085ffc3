#include "server/access_log.h"

#include <fcntl.h>
#include <spdlog/async.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

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

class LineSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit LineSink(LineWriter& to) : to_(to) {}
  void Lost() { ++lost_; }
  uint64_t lost() const { return lost_; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (!to_.Write({line.data(), line.size()})) Lost();
  }
  void flush_() override {}

 private:
  LineWriter& to_;
  std::atomic<uint64_t> lost_{0};
};

class File {
 public:
  explicit File(const std::string& path) {
    std::error_code ignored;  // opening tells
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd_ < 0) throw Error(ErrorCode::kIo, "--access-log: cannot write '" + path + "': " + std::strerror(errno));
    writer_.emplace(fd_);
  }
  ~File() {
    writer_.reset();
    ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  LineWriter& writer() { return *writer_; }

 private:
  int fd_ = -1;
  std::optional<LineWriter> writer_;
};

}  // namespace

LineLog OpenLineLog(const std::string& path) {
  constexpr size_t kWaitingLines = 8192;
  // Owned together: the logger refers to its pool weakly, and the pool's end writes what still waits.
  struct Log {
    std::optional<File> file;
    std::shared_ptr<LineSink> sink;
    std::shared_ptr<spdlog::details::thread_pool> pool;
    std::shared_ptr<spdlog::async_logger> logger;
  };
  auto log = std::make_shared<Log>();
  if (path != "-") log->file.emplace(path);
  log->sink = std::make_shared<LineSink>(log->file ? log->file->writer() : StandardError());
  log->pool = std::make_shared<spdlog::details::thread_pool>(kWaitingLines, 1);
  log->logger = std::make_shared<spdlog::async_logger>("access", log->sink, log->pool,
                                                       spdlog::async_overflow_policy::overrun_oldest);
  log->logger->set_pattern("%v");
  log->logger->set_error_handler([sink = log->sink](const std::string&) { sink->Lost(); });
  return {[log](std::string_view line) { log->logger->log(spdlog::level::info, "{}", line); },
          [log] { return log->pool->overrun_counter() + log->sink->lost(); }};
}

}  // namespace senko::server
