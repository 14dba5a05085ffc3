// How long a GPU idles between two steps of the engine: `runtime_cuda_idle_bench MODEL [auto|dummy [SEQUENCES...]]`.
//
// Sequences of one request decode side by side. A step's time is what passes between two of its tokens; the GPU's own
// is taken by events around the kernels of the passes and of the draws, so that copies, launches that come late and
// gaps between graphs all count as idle.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "senko/senko.h"

namespace senko {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kTokens = 400, kFirst = 50, kLast = 380;

class Client final : public OutputSink {
 public:
  void OnScheduled(const RequestUsage&, bool) override {}
  void OnPromptLogprobs(std::vector<TokenOutput>) override {}
  void OnOutput(OutputChunk chunk) override {
    const std::lock_guard lock(mutex_);
    tokens_ += chunk.tokens.size();
    while (times_.size() < tokens_) times_.push_back(Clock::now());
    if (chunk.finish) done_ = true;
    if (chunk.finish == FinishReason::kError) std::fprintf(stderr, "%s\n", chunk.error.c_str());
    changed_.notify_all();
  }
  // False: it ended before.
  bool WaitFor(size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_ >= tokens || done_; });
    return tokens_ >= tokens;
  }
  double Between(size_t first, size_t last) {
    const std::lock_guard lock(mutex_);
    return std::chrono::duration<double>(times_.at(last) - times_.at(first)).count();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t tokens_ = 0;
  std::vector<Clock::time_point> times_;
  bool done_ = false;
};

void Measure(Engine& engine, int64_t sequences) {
  std::vector<std::shared_ptr<Client>> clients;
  for (int64_t i = 0; i < sequences; ++i) {
    GenerationRequest request;
    for (int64_t t = 0; t < 64; ++t) {
      request.prompt.push_back(static_cast<int32_t>((7 + 13 * t + 101 * i) % (engine.limits().vocab_size / 2)));
    }
    request.sampling.max_tokens = kTokens;
    request.sampling.ignore_eos = true;
    request.sampling.seed = static_cast<uint64_t>(i);
    clients.push_back(std::make_shared<Client>());
    engine.Submit(std::move(request), clients.back());
  }
  for (const auto& client : clients) client->WaitFor(kFirst);
  const EngineStats before = engine.stats();
  if (!clients[0]->WaitFor(kLast)) return;
  const EngineStats after = engine.stats();
  for (const auto& client : clients) client->WaitFor(kTokens);
  // Stats of a step come together with its tokens.
  const double steps =
      static_cast<double>(after.generation_tokens - before.generation_tokens) / static_cast<double>(sequences);
  const double wall = 1e6 * clients[0]->Between(kFirst + 20, kLast) / static_cast<double>(kLast - kFirst - 20);
  const double passes = 1e6 * (after.model_seconds - before.model_seconds) / steps;
  const double draws = 1e6 * (after.sampler_seconds - before.sampler_seconds) / steps;
  const double host = 1e6 * (after.compute_cpu_seconds - before.compute_cpu_seconds) / steps;
  std::printf("%lld sequences: a step %.1f us: passes %.1f, head and draws %.1f, idle %.1f; runner's CPU time %.1f\n",
              static_cast<long long>(sequences), wall, passes, draws, wall - passes - draws, host);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: runtime_cuda_idle_bench MODEL [auto|dummy [SEQUENCES...]]\n");
    return 2;
  }
  EngineOptions options;
  options.model = argv[1];
  options.device = "cuda";
  if (argc > 2) options.load_format = argv[2];
  std::vector<int64_t> counts;
  for (int i = 3; i < argc; ++i) counts.push_back(std::atoll(argv[i]));
  if (counts.empty()) counts = {1, 8, 64};
  options.max_model_len = 512;
  options.max_num_batched_tokens = 1024;
  options.max_num_seqs = std::max<int64_t>(*std::max_element(counts.begin(), counts.end()), 1);
  const auto engine = LoadEngine(options);
  for (const int64_t count : counts) Measure(*engine, count);
  return 0;
}

}  // namespace
}  // namespace senko

int main(int argc, char** argv) {
  try {
    return senko::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "runtime_cuda_idle_bench: %s\n", error.what());
    return 2;
  }
}
