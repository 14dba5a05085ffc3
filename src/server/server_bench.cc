// What the HTTP side costs for each generated token: CPU time of Event() and of the I/O threads together.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/answer.h"
#include "server/http_server.h"
#include "server/metrics.h"

namespace senko::server {
namespace {

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Reads everything that comes on `count` connections and drops it; its CPU time is not the server's.
class Readers {
 public:
  Readers(int port, int count) {
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::abort();
      const std::string request = "GET /stream HTTP/1.1\r\nHost: bench\r\n\r\n";
      if (send(fd, request.data(), request.size(), 0) < 0) std::abort();
      waits_.push_back({fd, POLLIN, 0});
    }
    thread_ = std::thread([this] { Read(); });
  }
  ~Readers() {
    end_ = true;
    thread_.join();
    for (const pollfd& wait : waits_) close(wait.fd);
  }
  double cpu_seconds() const { return cpu_seconds_; }

 private:
  void Read() {
    std::vector<char> buffer(1 << 16);
    while (!end_) {
      if (poll(waits_.data(), waits_.size(), 20) <= 0) continue;
      for (const pollfd& wait : waits_) {
        if ((wait.revents & POLLIN) != 0) (void)!recv(wait.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      }
      cpu_seconds_ = CpuSeconds(RUSAGE_THREAD);
    }
  }
  std::vector<pollfd> waits_;
  std::atomic<bool> end_ = false;
  std::atomic<double> cpu_seconds_ = 0;
  std::thread thread_;
};

// A step of the engine: one token for each of `streams` streams, then a pause of `state.range(1)` microseconds.
void TokensToClients(benchmark::State& state) {
  const int streams = static_cast<int>(state.range(0));
  std::mutex mutex;
  std::vector<std::shared_ptr<api::Exchange>> exchanges;
  HttpOptions options;
  options.port = 0;
  HttpServer server(options, {{"GET", "/stream", [&](const api::HttpRequest&, std::shared_ptr<api::Exchange> exchange) {
                                 exchange->BeginEvents();
                                 const std::lock_guard lock(mutex);
                                 exchanges.push_back(std::move(exchange));
                               }}});
  server.Start();
  {
    Readers readers(server.port(), streams);
    for (size_t there = 0; there < static_cast<size_t>(streams);) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard lock(mutex);
      there = exchanges.size();
    }
    const std::string event(200, 'x');  // about what a chat chunk is
    const double cpu = CpuSeconds(RUSAGE_SELF), reading = readers.cpu_seconds();
    for (auto _ : state) {
      for (const auto& exchange : exchanges) exchange->Event(event);
      std::this_thread::sleep_for(std::chrono::microseconds(state.range(1)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const double spent = CpuSeconds(RUSAGE_SELF) - cpu - (readers.cpu_seconds() - reading);
    const double tokens = static_cast<double>(state.iterations()) * streams;
    state.counters["cpu_us_per_token"] = spent / tokens * 1e6;
    state.counters["gone"] = static_cast<double>(server.stats().clients_gone);
  }
  exchanges.clear();
}
BENCHMARK(TokensToClients)->Args({1, 5000})->Args({16, 5000})->Args({64, 5000})->Args({256, 20000})->UseRealTime();

// Event() alone, on the engine's thread.
void EventCall(benchmark::State& state) {
  struct SilentBell : Bell {
    void Ring() noexcept override {}
  };
  auto answer = std::make_shared<Answer>("/x", std::make_shared<SilentBell>(), size_t{1} << 40,
                                         Answer::Share{std::make_shared<Ledger>(int64_t{1} << 40), nullptr, {}});
  answer->BeginEvents();
  const std::string event(200, 'x');
  Answer::Batch batch;
  int64_t events = 0;
  for (auto _ : state) {
    answer->Event(event, "");
    if (++events % 16 == 0) answer->Take(&batch);
  }
}
BENCHMARK(EventCall);

void ObserveHistogram(benchmark::State& state) {
  static MetricsRegistry registry({});
  static MetricsRegistry::Histogram* const histogram =
      registry.AddHistogram("h", "", {1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10});
  double value = 0;
  for (auto _ : state) {
    histogram->Observe(value);
    value = value < 1 ? value + 0.01 : 0;
  }
}
BENCHMARK(ObserveHistogram)->Threads(1)->Threads(2)->Threads(4);

}  // namespace
}  // namespace senko::server
