// Engram and draws.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/gpu_data.h"
#include "bench/gpu_op_cases.h"
#include "cuda/mapped_buffer.h"
#include "ops/engram/engram_sm90.h"
#include "ops/sample/sample_sm90.h"

namespace senko::bench {
namespace {

constexpr int64_t kHidden = 5120, kVocab = 129280;

// 24 table rows of 256 + 8 bytes a token. In host memory the limit is not the GPU's, so none is stated.
GpuOpCase EngramGather(bool host, int64_t rows) {
  constexpr int64_t kDim = 256, kTableRows = (int64_t{4} << 30) / kDim, kIds = int64_t{1} << 17;
  GpuOpCase op;
  op.name = fmt::format("engram_gather 24x256 of 4 GiB in {} memory rows={}", host ? "host" : "device", rows);
  op.bytes = static_cast<double>(rows * 24 * (kDim + kDim / 32 + 2 * kDim));
  op.host_memory = host;
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    using Mapped = cuda::MappedBuffer<uint8_t>;
    constexpr int64_t kBytes = kTableRows * kDim;
    auto values = std::make_shared<Mapped>(host ? static_cast<size_t>(kBytes) : 0);
    auto scales = std::make_shared<Mapped>(host ? static_cast<size_t>(kBytes / 32) : 0);
    ops::EngramGatherSm90Params p;
    p.values = host ? values->device() : data->Random<uint8_t>(kBytes, 0xBFBFBFBFu, 0);
    p.scales = host ? scales->device() : data->Scales(static_cast<size_t>(kBytes / 32));
    p.hash.max_ngram = 4;
    p.hash.heads = 8;
    const uint64_t multipliers[] = {76632096046245, 4839876093313, 35959672319349, 73987337458391};
    std::copy(std::begin(multipliers), std::end(multipliers), p.hash.multipliers);
    const int64_t each = kTableRows / p.hash.slots();
    for (int64_t s = 0; s < p.hash.slots(); ++s) {
      p.hash.primes[s] = static_cast<uint64_t>(each - 1 - s * 2);
      p.hash.offsets[s] = s * each;
    }
    std::vector<int64_t> positions;
    for (int64_t r = 0; r < rows; ++r) positions.push_back(r + 8);
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.positions = data->Upload(positions);
    p.sequences = data->Zeros<int32_t>(rows);
    p.tokens = data->Upload(std::vector<const int32_t*>{data->Random<int32_t>(rows + 8, kIds - 1, 0)});
    p.tokens_begin = data->Zeros<int64_t>(1);
    p.token_map = data->Random<int32_t>(kIds, 0xFFFF, 0);
    p.vocab = kIds;
    p.table_rows = kTableRows;
    p.dim = kDim;
    p.out = data->Zeros<__nv_bfloat16>(rows * p.hash.slots() * kDim);
    p.max_blocks = 16;  // as a step has it
    return {[data, values, scales, p](cudaStream_t stream) { ops::EngramGatherSm90(p, stream); }, nullptr};
  };
  return op;
}

GpuOpCase EngramInject(int64_t rows) {
  GpuOpCase op;
  op.name = fmt::format("engram_inject rows={}", rows);
  op.bytes = static_cast<double>(rows * (5 + 4 + 4) * kHidden * 2);
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::EngramInjectSm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.hidden = kHidden;
    p.kv = data->Rows(rows * 5 * kHidden);
    p.q_weight = data->Floats(4 * kHidden);
    p.k_weight = data->Floats(4 * kHidden);
    p.rms_eps = 1e-20f;
    p.streams = data->Rows(rows * 4 * kHidden);
    return {[data, p](cudaStream_t stream) { ops::EngramInjectSm90(p, stream); }, CopyOf(data, op.bytes)};
  };
  return op;
}

// A row as language models give them: a few hundred likely tokens over a broad floor.
std::vector<float> Logits() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(kVocab);
  for (float& l : logits) l = normal(random);
  for (int i = 0; i < 300; ++i) {
    logits[random() % logits.size()] = 20.0f - 2.0f * std::log(1.0f + static_cast<float>(i));
  }
  return logits;
}

struct Draw {
  const char* name;
  float temperature = 0;
  int64_t top_k = 0;
  float top_p = 1;
  bool penalties = false;
  int32_t logprobs = -1;
};

GpuOpCase Sample(const Draw& draw, int64_t rows) {
  GpuOpCase op;
  op.name = fmt::format("sample {} of {} rows={}", draw.name, kVocab, rows);
  op.bytes = static_cast<double>(rows * kVocab) * (4 + (draw.penalties ? 2 : 0));
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    const std::vector<float> row = Logits();
    auto* logits = data->Zeros<float>(rows * kVocab);
    auto* counts = data->Zeros<uint16_t>(draw.penalties ? rows * kVocab : 0);
    const auto* prompt = data->Random<uint32_t>(kVocab / 32, 0, 0x11111111u);
    std::vector<ops::SampleJobSm90> jobs(static_cast<size_t>(rows));
    for (size_t i = 0; i < jobs.size(); ++i) {
      const auto at = static_cast<int64_t>(i) * kVocab;
      SENKO_CUDA(cudaMemcpy(logits + at, row.data(), kVocab * sizeof(float), cudaMemcpyHostToDevice));
      ops::SampleJobSm90& job = jobs[i];
      job.row = static_cast<int32_t>(i);
      job.temperature = draw.temperature;
      job.top_k = draw.top_k;
      job.top_p = draw.top_p;
      job.position = i;
      job.top_logprobs = draw.logprobs;
      if (!draw.penalties) continue;
      job.repetition = 1.1f;
      job.frequency = 0.2f;
      job.presence = 0.1f;
      job.counts = counts + at;
      job.in_prompt = prompt;
    }
    ops::SampleSm90Params p;
    p.num_jobs = data->Number(rows);
    p.max_jobs = rows;
    p.jobs = data->Upload(jobs);
    p.vocab = kVocab;
    p.logits = logits;
    p.tokens = data->Zeros<int32_t>(rows);
    p.results = data->Zeros<ops::SampleResultSm90>(rows);
    return {[data, p](cudaStream_t stream) { ops::SampleSm90(p, stream); }, nullptr};
  };
  return op;
}

}  // namespace

void AddOtherCases(std::vector<GpuOpCase>& cases);
void AddOtherCases(std::vector<GpuOpCase>& cases) {
  for (const int64_t rows : {1, 8, 64, 8192}) cases.push_back(EngramInject(rows));
  for (const bool host : {false, true}) {
    for (const int64_t rows : {1, 8, 64, 8192}) cases.push_back(EngramGather(host, rows));
  }
  const Draw draws[] = {{"greedy"},
                        {"temperature", 1},
                        {"top_k 50", 1, 50},
                        {"top_p 0.95", 1, 0, 0.95f},
                        {"top_p 0.95 with penalties", 1, 0, 0.95f, true},
                        {"greedy with 20 log-probabilities", 0, 0, 1, false, 20}};
  for (const Draw& draw : draws) {
    for (const int64_t rows : {1, 8, 64, 512}) cases.push_back(Sample(draw, rows));
  }
}

}  // namespace senko::bench
