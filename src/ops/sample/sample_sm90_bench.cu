// Time per launch of draws on sm_90a in a graph, from a full vocabulary's logits: `peaked` as a language model's are (a
// few likely tokens over a broad floor), or flat, where the nucleus holds tens of thousands. Rows are cold once there
// are more than the second-level cache holds, as they are warm behind the head's own writes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/sample/sample_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;

constexpr int64_t kVocab = 129280;
constexpr int64_t kMostRows = 512;

std::vector<float> Logits(bool peaked) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(kVocab);
  for (float& l : logits) l = normal(random);
  for (int i = 0; peaked && i < 300; ++i) {
    logits[random() % logits.size()] = 20.0f - 2.0f * std::log(1.0f + static_cast<float>(i));
  }
  return logits;
}

struct Kind {
  const char* name;
  bool peaked;
  float temperature;
  int64_t top_k;
  float top_p;
  bool penalties;
  int32_t logprobs;
};

void All() {
  const DeviceBuffer<float> logits(static_cast<size_t>(kMostRows * kVocab));
  const DeviceBuffer<uint16_t> counts(static_cast<size_t>(kMostRows * kVocab));
  const DeviceBuffer<uint32_t> prompt(static_cast<size_t>(kVocab / 32));
  const DeviceBuffer<int32_t> tokens(static_cast<size_t>(kMostRows));
  const DeviceBuffer<SampleResultSm90> results(static_cast<size_t>(kMostRows));
  SENKO_CUDA(cudaMemset(prompt.data(), 0x11, prompt.bytes()));
  std::vector<uint16_t> answer(kVocab);
  for (size_t i = 0; i < 1000; ++i) answer[i * 129] = 1;
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  const Kind kinds[] = {{"greedy", true, 0, 0, 1, false, -1},
                        {"temperature", true, 1, 0, 1, false, -1},
                        {"top_p 0.95", true, 1, 0, 0.95f, false, -1},
                        {"top_p 0.95, flat", false, 1, 0, 0.95f, false, -1},
                        {"top_k 50", true, 1, 50, 1, false, -1},
                        {"top_k 50, top_p 0.95", true, 1, 50, 0.95f, false, -1},
                        {"greedy, penalties", true, 0, 0, 1, true, -1},
                        {"top_p 0.95, penalties", true, 1, 0, 0.95f, true, -1},
                        {"greedy, log-probabilities 20", true, 0, 0, 1, false, 20}};
  for (const Kind& kind : kinds) {
    const std::vector<float> row = Logits(kind.peaked);
    for (int64_t r = 0; r < kMostRows; ++r) {
      SENKO_CUDA(cudaMemcpy(logits.data() + r * kVocab, row.data(), kVocab * sizeof(float), cudaMemcpyHostToDevice));
      SENKO_CUDA(
          cudaMemcpy(counts.data() + r * kVocab, answer.data(), kVocab * sizeof(uint16_t), cudaMemcpyHostToDevice));
    }
    for (const int64_t rows : {1, 8, 64, 512}) {
      std::vector<SampleJobSm90> list(static_cast<size_t>(rows));
      for (size_t i = 0; i < list.size(); ++i) {
        SampleJobSm90& job = list[i];
        job.row = static_cast<int32_t>(i);
        job.temperature = kind.temperature;
        job.top_k = kind.top_k;
        job.top_p = kind.top_p;
        job.position = i;
        job.top_logprobs = kind.logprobs;
        if (!kind.penalties) continue;
        job.repetition = 1.1f;
        job.frequency = 0.2f;
        job.presence = 0.1f;
        job.counts = counts.data() + static_cast<int64_t>(i) * kVocab;
        job.in_prompt = prompt.data();
      }
      const DeviceBuffer<SampleJobSm90> jobs = ToDevice(list);
      const DeviceBuffer<int32_t> num = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
      SampleSm90Params p;
      p.num_jobs = num.data();
      p.max_jobs = rows;
      p.jobs = jobs.data();
      p.vocab = kVocab;
      p.logits = logits.data();
      p.tokens = tokens.data();
      p.results = results.data();
      const double bytes = static_cast<double>(rows * kVocab) * (4 + (kind.penalties ? 2 : 0));
      const double t = cuda::SecondsPerCall(stream, std::max(bytes / cuda::kBytesPerSecond, 1e-5),
                                            [&](int) { SampleSm90(p, stream); });
      std::printf("%-28s  %4lld rows  %8.2f us  %5.2f TB/s\n", kind.name, static_cast<long long>(rows), t * 1e6,
                  bytes / t * 1e-12);
    }
  }
  SENKO_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace senko::ops

int main() { return senko::cuda::MainOnDevice(senko::ops::All); }
