// Draws, processors and log-probabilities of sm_90a against the references: tokens, ranks and counts exactly.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "cuda/launch.h"
#include "cuda/test_device.h"
#include "ops/sample/draw_scheme.h"
#include "ops/sample/fixed_weight.cuh"
#include "ops/sample/logprobs.h"
#include "ops/sample/processors.h"
#include "ops/sample/sample.h"
#include "ops/sample/sample_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kReleasedVocab = 129280;

class SampleSm90Test : public cuda::DeviceTest {};

std::vector<float> Logits(int64_t vocab, float spread, bool coarse, std::mt19937_64& random) {
  std::normal_distribution<float> normal(-3, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& l : logits) l = coarse ? std::round(normal(random)) : normal(random);
  return logits;
}

// A draw as the host asks for it.
struct Ask {
  int32_t row = 0;
  SampleParams sample;  // without vocab, logits, banned
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<uint32_t> allowed;
  std::vector<int32_t> banned, prompt, answer, extra;
  float repetition = 1, frequency = 0, presence = 0;
  bool penalises = false, adds_token = true;
  int top_logprobs = -1;
};
struct Got {
  int32_t token = -7;  // as in the results and in the tokens
  LogprobEntry own;
  std::vector<LogprobEntry> top;
  std::vector<uint16_t> counts;  // after the draw
};

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// What sampler.cc does, with the references.
Got Want(const std::vector<float>& row, const Ask& ask) {
  Got got;
  const auto vocab = static_cast<int64_t>(row.size());
  std::vector<int32_t> counts(row.size());
  got.counts.resize(row.size());
  for (const int32_t id : ask.answer) got.counts[static_cast<size_t>(id)] = ++counts[static_cast<size_t>(id)];
  for (const int32_t id : ask.extra) {
    if (id >= 0) ++counts[static_cast<size_t>(id)];
  }
  std::vector<OutputCount> output;
  for (int32_t id = 0; id < vocab; ++id) {
    const int32_t count = counts[static_cast<size_t>(id)];
    if (count > 0) output.push_back({id, count, Contains(ask.prompt, id)});
  }
  std::vector<float> processed = row;
  ProcessorParams p;
  p.vocab = vocab;
  p.logits = processed.data();
  p.bias = ask.bias;
  p.allowed = ask.allowed.empty() ? nullptr : ask.allowed.data();
  p.banned = ask.banned;
  if (ask.penalises) {
    p.repetition = ask.repetition;
    p.frequency = ask.frequency;
    p.presence = ask.presence;
    p.prompt = ask.prompt;
    p.output = output;
  }
  SampleParams sample = ask.sample;
  sample.banned = ProcessReference(p);
  sample.vocab = vocab;
  sample.logits = processed.data();
  got.token = static_cast<int32_t>(SampleReference(sample));
  if (got.token >= 0 && ask.top_logprobs >= 0) {
    got.top.resize(static_cast<size_t>(std::min<int64_t>(vocab, ask.top_logprobs)));
    if (!LogprobsReference({vocab, row.data(), got.token, &got.own, got.top})) {
      got.token = static_cast<int32_t>(kRowNotFinite);
      got.top.clear();
    }
  }
  if (got.token >= 0 && ask.penalises && ask.adds_token) ++got.counts[static_cast<size_t>(got.token)];
  return got;
}

// Everything one launch needs on the device.
struct Launched {
  int64_t vocab, max_jobs;
  DeviceBuffer<float> logits, bias_values;
  DeviceBuffer<int32_t> num_jobs, bias_ids, banned_ids, extra_ids, tokens;
  DeviceBuffer<uint32_t> masks;
  DeviceBuffer<uint16_t> counts;
  DeviceBuffer<SampleJobSm90> jobs;
  DeviceBuffer<SampleResultSm90> results;
  std::vector<Ask> asks;

  Launched(const std::vector<std::vector<float>>& rows, std::vector<Ask> all, int64_t room = 0)
      : vocab(static_cast<int64_t>(rows[0].size())),
        max_jobs(static_cast<int64_t>(all.size()) + room),
        asks(std::move(all)) {
    std::vector<float> flat, values;
    for (const std::vector<float>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    logits = ToDevice(flat);
    const auto v = static_cast<size_t>(vocab), words = (v + 31) / 32;
    std::vector<int32_t> bias, banned, extra;
    std::vector<uint32_t> bits(2 * words * asks.size());  // allowed, prompt
    std::vector<uint16_t> tables(v * asks.size());
    std::vector<SampleJobSm90> list(static_cast<size_t>(max_jobs));
    masks = DeviceBuffer<uint32_t>(bits.size());
    counts = DeviceBuffer<uint16_t>(tables.size());
    for (size_t i = 0; i < asks.size(); ++i) {
      const Ask& a = asks[i];
      SampleJobSm90& job = list[i];
      job.row = a.row;
      job.temperature = a.sample.temperature;
      job.top_k = a.sample.top_k;
      job.top_p = a.sample.top_p;
      job.least_exponent = LeastExponent(a.sample.min_p);
      job.seed = a.sample.seed;
      job.choice = a.sample.choice;
      job.position = a.sample.position;
      job.bias_begin = static_cast<int32_t>(bias.size());
      job.bias_count = static_cast<int32_t>(a.bias.size());
      for (const auto& [id, value] : a.bias) bias.push_back(id), values.push_back(value);
      job.banned_begin = static_cast<int32_t>(banned.size());
      job.banned_count = static_cast<int32_t>(a.banned.size());
      banned.insert(banned.end(), a.banned.begin(), a.banned.end());
      job.extra_begin = static_cast<int32_t>(extra.size());
      job.extra_count = static_cast<int32_t>(a.extra.size());
      extra.insert(extra.end(), a.extra.begin(), a.extra.end());
      std::copy(a.allowed.begin(), a.allowed.end(), bits.begin() + static_cast<std::ptrdiff_t>(2 * i * words));
      if (!a.allowed.empty()) job.allowed = masks.data() + 2 * i * words;
      for (const int32_t id : a.answer) ++tables[i * v + static_cast<size_t>(id)];
      for (const int32_t id : a.prompt) bits[(2 * i + 1) * words + static_cast<size_t>(id / 32)] |= 1u << (id % 32);
      if (a.penalises) {
        job.repetition = a.repetition;
        job.frequency = a.frequency;
        job.presence = a.presence;
        job.counts = counts.data() + i * v;
        if (a.repetition != 1) job.in_prompt = masks.data() + (2 * i + 1) * words;
      }
      job.adds_token = a.adds_token;
      job.top_logprobs = a.top_logprobs;
    }
    bias_ids = ToDevice(bias);
    bias_values = ToDevice(values);
    banned_ids = ToDevice(banned);
    extra_ids = ToDevice(extra);
    jobs = ToDevice(list);
    SENKO_CUDA(cudaMemcpy(masks.data(), bits.data(), masks.bytes(), cudaMemcpyHostToDevice));
    SENKO_CUDA(cudaMemcpy(counts.data(), tables.data(), counts.bytes(), cudaMemcpyHostToDevice));
    num_jobs = ToDevice(std::vector<int32_t>{static_cast<int32_t>(asks.size())});
    tokens = DeviceBuffer<int32_t>(static_cast<size_t>(max_jobs));
    results = DeviceBuffer<SampleResultSm90>(static_cast<size_t>(max_jobs));
    Poison();
  }

  void Poison() {
    SENKO_CUDA(cudaMemset(tokens.data(), 0xA5, tokens.bytes()));
    SENKO_CUDA(cudaMemset(results.data(), 0xA5, results.bytes()));
  }
  void Live(int32_t jobs_now) {
    SENKO_CUDA(cudaMemcpy(num_jobs.data(), &jobs_now, sizeof(jobs_now), cudaMemcpyHostToDevice));
  }
  SampleSm90Params Params() const {
    SampleSm90Params p;
    p.num_jobs = num_jobs.data();
    p.max_jobs = max_jobs;
    p.jobs = jobs.data();
    p.vocab = vocab;
    p.logits = logits.data();
    p.bias_ids = bias_ids.data();
    p.bias_values = bias_values.data();
    p.banned_ids = banned_ids.data();
    p.extra_ids = extra_ids.data();
    p.tokens = tokens.data();
    p.results = results.data();
    return p;
  }
  std::vector<Got> Read() const {
    const std::vector<int32_t> token = ToHost(tokens);
    const std::vector<SampleResultSm90> result = ToHost(results);
    const std::vector<uint16_t> tables = ToHost(counts);
    std::vector<Got> got;
    for (size_t i = 0; i < asks.size(); ++i) {
      Got g;
      g.token = token[i] == result[i].token ? token[i] : -99;
      g.own = result[i].own;
      g.top.assign(result[i].top, result[i].top + kMaxTopLogprobs);
      const auto from = tables.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      g.counts.assign(from, from + vocab);
      got.push_back(std::move(g));
    }
    return got;
  }
  std::vector<Got> Run() const {
    SampleSm90(Params(), nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return Read();
  }
};

// Two roundings to float; of the sum of integer weights, half of 2^-44 a token and e^-32 a token left out (logprobs.h).
void ExpectNear(const LogprobEntry& got, const LogprobEntry& want, int64_t vocab) {
  EXPECT_EQ(got.token, want.token);
  EXPECT_EQ(got.rank, want.rank);
  const double sum_bound = static_cast<double>(vocab) * (0x1p-45 + std::exp(-32.0));
  EXPECT_NEAR(got.logprob, want.logprob, std::fabs(want.logprob) * 0x1p-23 + sum_bound + 1e-14);
}

void ExpectPoison(const LogprobEntry& e) {
  EXPECT_EQ(e.token, static_cast<int32_t>(0xA5A5A5A5u));
  EXPECT_EQ(e.rank, static_cast<int64_t>(0xA5A5A5A5A5A5A5A5u));
}

void ExpectGot(const Got& got, const Got& want, const Ask& ask, int64_t vocab) {
  EXPECT_EQ(got.token, want.token) << "vocab " << vocab << " T " << ask.sample.temperature << " k " << ask.sample.top_k
                                   << " p " << ask.sample.top_p << " m " << ask.sample.min_p;
  EXPECT_EQ(got.counts, want.counts);
  const bool scored = want.token >= 0 && ask.top_logprobs >= 0;
  if (scored) {
    ExpectNear(got.own, want.own, vocab);
  } else {
    ExpectPoison(got.own);
  }
  for (size_t i = 0; i < got.top.size(); ++i) {
    if (scored && i < want.top.size()) {
      ExpectNear(got.top[i], want.top[i], vocab);
    } else {
      ExpectPoison(got.top[i]);
    }
  }
}

void Check(const std::vector<std::vector<float>>& rows, const std::vector<Ask>& asks) {
  const Launched launched(rows, asks, 3);
  const std::vector<Got> got = launched.Run();
  for (size_t i = 0; i < asks.size(); ++i) {
    ExpectGot(got[i], Want(rows[static_cast<size_t>(asks[i].row)], asks[i]), asks[i],
              static_cast<int64_t>(rows[0].size()));
    if (testing::Test::HasFailure()) return;
  }
  const std::vector<int32_t> tokens = ToHost(launched.tokens);
  for (size_t i = asks.size(); i < tokens.size(); ++i) EXPECT_EQ(tokens[i], static_cast<int32_t>(0xA5A5A5A5u));
}

// Weights of pseudo-random exponents by both ways; counts those that differ.
__global__ void CompareWeights(uint64_t seed, int each, uint32_t* wrong) {
  uint64_t word = seed + uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int i = 0; i < each; ++i) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    uint64_t bits = word ^ word >> 29;
    bits ^= bits * 0x9E3779B97F4A7C15u >> 31;
    const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
    const double exponent[3] = {-32 * unit, -unit, -unit * 0x1p-10};
    uint64_t w[3];
    sm90::HeavyWeights(exponent, w);
    for (int j = 0; j < 3; ++j) {
      if (w[j] != FixedWeight(exponent[j])) atomicAdd(wrong, 1u);
    }
  }
}

TEST_F(SampleSm90Test, FusedWeightsAreTheDefinedOnes) {
  const DeviceBuffer<uint32_t> wrong = ToDevice(std::vector<uint32_t>(1));
  cuda::Launch launch;
  launch.grid = dim3(132);
  launch.block = dim3(512);
  cuda::Start(launch, CompareWeights, uint64_t{std::random_device{}()} << 20, 2000, wrong.data());
  SENKO_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(ToHost(wrong)[0], 0u);
}

TEST_F(SampleSm90Test, DrawsTheReferencesToken) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t vocab : {1, 2, 5, 17, 256, 999, 5300}) {
    std::vector<std::vector<float>> rows;
    std::vector<Ask> asks;
    for (const float spread : {0.0f, 0.5f, 3.0f, 20.0f}) {
      for (const bool coarse : {false, true}) {
        rows.push_back(Logits(vocab, spread, coarse, random));
        for (const float temperature : {0.0f, 1.0f, 0.3f, kInf}) {
          for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{7}, vocab - 1, vocab, vocab + 5}) {
            for (const float top_p : {1.0f, 0.95f, 0.3f, 0.0f}) {
              for (const float min_p : {0.0f, 0.05f, 1.0f}) {
                Ask ask;
                ask.row = static_cast<int32_t>(rows.size()) - 1;
                ask.sample = {0, nullptr, temperature, top_k, top_p, min_p, random(), random() % 3, random() % 1000};
                asks.push_back(ask);
              }
            }
          }
        }
      }
    }
    Check(rows, asks);
  }
}

TEST_F(SampleSm90Test, DrawsTheReferencesTokenFromAFullVocabulary) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::vector<float>> rows;
  std::vector<Ask> asks;
  for (const float spread : {0.0f, 0.2f, 2.0f, 6.0f}) {
    rows.push_back(Logits(kReleasedVocab, spread, spread == 2.0f, random));  // ties by the thousand
    for (const auto& [top_k, top_p, min_p] : {std::tuple{0, 1.0f, 0.0f},
                                              {0, 0.95f, 0.0f},
                                              {50, 0.9f, 0.0f},
                                              {700, 1.0f, 0.0f},
                                              {0, 0.999f, 0.001f},
                                              {100000, 0.5f, 0.0f},
                                              {0, 0.99999f, 0.0f},
                                              {100, 1.0f, 0.0f},
                                              {129, 0.9f, 0.01f}}) {
      for (int i = 0; i < 2; ++i) {
        Ask ask;
        ask.row = static_cast<int32_t>(rows.size()) - 1;
        ask.sample = {0, nullptr, 1, top_k, top_p, min_p, random(), 0, random() % 1000};
        ask.top_logprobs = static_cast<int>(random() % 22) - 1;
        asks.push_back(ask);
      }
    }
    Ask greedy;
    greedy.row = static_cast<int32_t>(rows.size()) - 1;
    asks.push_back(greedy);
  }
  Check(rows, asks);
}

// Every weight that a token can have is drawn where the sum of those before it says.
TEST_F(SampleSm90Test, ManyDrawsOfOneRow) {
  std::mt19937_64 random(std::random_device{}());
  const std::vector<std::vector<float>> rows = {Logits(3001, 1.5f, false, random)};
  for (const auto& [top_k, top_p] : {std::pair{0, 1.0f}, {0, 0.9f}, {300, 0.97f}}) {
    std::vector<Ask> asks(700);
    for (Ask& ask : asks) ask.sample = {0, nullptr, 0.8f, top_k, top_p, 0, random(), random(), random()};
    Check(rows, asks);
  }
}

TEST_F(SampleSm90Test, HugeLogitsAndTemperatures) {
  const std::vector<std::vector<float>> rows = {{3.4e38f, -3.4e38f, -FLT_MAX, 1e-45f, -0.0f},
                                                {-0.0f, 0.0f, -0.0f, 1e-45f, -1e-45f},
                                                {FLT_MAX, FLT_MAX, -FLT_MAX, 0, 1},
                                                {7, 7, 7, 7, 7}};
  std::mt19937_64 random(std::random_device{}());
  std::vector<Ask> asks;
  for (int32_t row = 0; row < 4; ++row) {
    for (const float temperature : {0.0f, 9e-6f, 1.1e-5f, 1.0f, 1e30f, 3.4e38f, kInf}) {
      for (const int64_t top_k : {0, 2, 4}) {
        for (const float top_p : {1.0f, 0.7f}) {
          for (const float min_p : {0.0f, 0.5f, 1.0f}) {
            Ask ask;
            ask.row = row;
            ask.sample = {0, nullptr, temperature, top_k, top_p, min_p, random(), 0, 0};
            ask.top_logprobs = 5;
            asks.push_back(ask);
          }
        }
      }
    }
  }
  Check(rows, asks);
}

// A random set of processors.
void Randomise(int64_t vocab, int most_listed, std::mt19937_64& random, Ask* ask) {
  std::normal_distribution<float> normal(0, 4);
  const auto id = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)); };
  const auto on = [&] { return random() % 2 == 0; };
  const auto some = [&] { return on() ? static_cast<int>(random() % static_cast<uint64_t>(most_listed)) : 0; };
  for (int i = some(); i > 0; --i) ask->bias.emplace_back(id(), 10 * normal(random));
  for (size_t i = 0; on() && i < ask->bias.size(); ++i) ask->bias[i].first %= 7;  // the same tokens again and again
  for (int i = some(); i > 0; --i) ask->banned.push_back(id());
  if (on()) {
    const uint64_t style = random() % 3;  // nearly all, any, hardly any
    for (int64_t w = 0; w < (vocab + 31) / 32; ++w) {
      const auto bits = static_cast<uint32_t>(random());
      ask->allowed.push_back(style == 0 ? (w % 5 == 0 ? ~(bits & 1) : ~0u) : style == 1 ? bits : w % 7 == 0 ? bits : 0);
    }
  }
  ask->penalises = on();
  if (!ask->penalises) return;
  if (on()) ask->repetition = 1.3f;
  if (on()) ask->frequency = on() ? 0.7f : -0.7f;
  if (on()) ask->presence = on() ? 1.1f : -1.1f;
  for (int i = some(); i > 0 && ask->repetition != 1; --i) {
    const int32_t token = id();
    if (!Contains(ask->prompt, token)) ask->prompt.push_back(token);
  }
  for (int i = some(); i > 0; --i) ask->answer.push_back(on() && !ask->answer.empty() ? ask->answer[0] : id());
  if (on()) {
    for (int i = 0; i < 5; ++i)
      ask->extra.push_back(i == 1 ? -1 : i > 2 && !ask->answer.empty() ? ask->answer[0] : id());
  }
  ask->adds_token = on();
}

TEST_F(SampleSm90Test, ProcessesAsTheReference) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t vocab : {1, 2, 31, 33, 160, 1000, 1003, 9000}) {
    std::vector<std::vector<float>> rows;
    std::vector<Ask> asks;
    for (int r = 0; r < 3; ++r) rows.push_back(Logits(vocab, 2, r == 2, random));
    for (int i = 0; i < 200; ++i) {
      Ask ask;
      ask.row = i % 3;
      const float temperature = i % 4 == 0 ? 0.0f : 1.0f;
      ask.sample = {
          0, nullptr, temperature, i % 5 == 0 ? 40 : 0, i % 3 == 0 ? 0.8f : 1.0f, i % 7 == 0 ? 0.01f : 0.0f, random(),
          0, 5};
      ask.top_logprobs = i % 2 == 0 ? static_cast<int>(random() % 21) : -1;
      Randomise(vocab, vocab == 9000 ? 1500 : 40, random, &ask);
      asks.push_back(ask);
    }
    Check(rows, asks);
  }
}

TEST_F(SampleSm90Test, ProcessesAFullVocabulary) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::vector<float>> rows = {Logits(kReleasedVocab, 2.5f, false, random)};
  std::vector<Ask> asks;
  for (int i = 0; i < 24; ++i) {
    Ask ask;
    ask.sample = {0, nullptr, i % 4 == 0 ? 0.0f : 0.9f, 0, i % 3 == 0 ? 0.95f : 1.0f, 0, random(), 0, 5};
    ask.top_logprobs = i % 2 == 0 ? 20 : -1;
    Randomise(kReleasedVocab, 60, random, &ask);
    asks.push_back(ask);
  }
  Check(rows, asks);
}

TEST_F(SampleSm90Test, AFaultFailsItsRowAlone) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::vector<float>> rows;
  std::vector<Ask> asks;
  for (const float bad : {kInf, -kInf, kNan, -kNan}) {
    for (const size_t at : {size_t{0}, size_t{37}, size_t{499}}) {
      rows.push_back(Logits(500, 1, false, random));
      rows.push_back(rows.back());
      rows.back()[at] = bad;
      for (int i = 0; i < 12; ++i) {
        Ask ask;
        ask.row = static_cast<int32_t>(rows.size()) - 1 - (i % 4 == 3 ? 1 : 0);
        ask.sample = {0, nullptr, i % 2 == 0 ? 0.0f : 1.0f, 0, 0.9f, 0, random(), 0, 0};
        ask.top_logprobs = i % 3;
        if (i % 4 == 1) ask.banned = {37, 5, 37};
        if (i % 4 == 2) ask.allowed.assign(16, 0xFFFFF0FFu);
        asks.push_back(ask);
      }
    }
  }
  Check(rows, asks);
  const std::vector<Got> got = Launched(rows, asks).Run();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].token >= 0, i % 12 % 4 == 3) << i;
}

TEST_F(SampleSm90Test, NothingAllowed) {
  std::mt19937_64 random(std::random_device{}());
  const std::vector<std::vector<float>> rows = {Logits(300, 1, false, random)};
  std::vector<Ask> asks(3);
  asks[0].allowed.assign(10, 0);
  for (int32_t id = 0; id < 300; ++id) asks[1].banned.push_back(id);
  asks[2].banned = asks[1].banned;
  asks[2].banned.erase(asks[2].banned.begin() + 123);
  asks[2].sample.temperature = 5;
  for (Ask& ask : asks) ask.top_logprobs = 3;
  Check(rows, asks);
  const std::vector<Got> got = Launched(rows, asks).Run();
  EXPECT_EQ(got[0].token, kNothingAllowed);
  EXPECT_EQ(got[1].token, kNothingAllowed);
  EXPECT_EQ(got[2].token, 123);
}

// Step after step the table follows the drawn tokens; the host never says which they were.
TEST_F(SampleSm90Test, CountsFollowTheDraws) {
  std::mt19937_64 random(std::random_device{}());
  const std::vector<std::vector<float>> rows = {Logits(400, 1, false, random)};
  std::vector<Ask> asks(4);
  for (Ask& ask : asks) {
    ask.penalises = true;
    ask.frequency = 0.3f;
    ask.repetition = 1.1f;
    ask.prompt = {3, 4, 5};
    ask.sample.temperature = &ask == &asks[0] ? 0.0f : 1.0f;
    ask.sample.seed = random();
  }
  const Launched launched(rows, asks);
  for (int step = 0; step < 20; ++step) {
    const std::vector<Got> got = launched.Run();
    for (size_t i = 0; i < asks.size(); ++i) {
      const Got want = Want(rows[0], asks[i]);
      ASSERT_EQ(got[i].token, want.token) << step;
      ASSERT_EQ(got[i].counts, want.counts) << step;
      asks[i].answer.push_back(want.token);
    }
  }
}

TEST_F(SampleSm90Test, CountsSaturateAndListsAreCounted) {
  const std::vector<std::vector<float>> rows = {{0, 9, 0, 0}};
  std::vector<Ask> asks(1);
  asks[0].penalises = true;
  const Launched launched(rows, asks);
  const std::vector<uint16_t> full = {0, 0xFFFF, 0xFFFE, 7};
  SENKO_CUDA(cudaMemcpy(launched.counts.data(), full.data(), 8, cudaMemcpyHostToDevice));
  EXPECT_EQ(launched.Run()[0].token, 1);
  EXPECT_EQ(ToHost(launched.counts), full);

  std::vector<int32_t> ids;
  for (int i = 0; i < 3000; ++i) ids.push_back(i % 3 == 0 ? 3 : i % 3 == 1 ? 2 : -1);
  const DeviceBuffer<int32_t> d_ids = ToDevice(ids), num = ToDevice(std::vector<int32_t>{2999});
  const DeviceBuffer<uint16_t*> tables = ToDevice(std::vector<uint16_t*>(ids.size(), launched.counts.data()));
  CountTokensSm90({num.data(), 3000, tables.data(), d_ids.data()}, nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(ToHost(launched.counts), (std::vector<uint16_t>{0, 0xFFFF, 0xFFFF, 1007}));
}

// One captured launch serves any number of jobs, with the same bits whatever runs beside.
TEST_F(SampleSm90Test, ACapturedLaunchServesAnyCount) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::vector<float>> rows;
  std::vector<Ask> asks;
  for (int i = 0; i < 40; ++i) {
    rows.push_back(Logits(2000, 3, false, random));
    Ask ask;
    ask.row = i;
    ask.sample = {0, nullptr, 1, 0, i % 2 == 0 ? 0.9f : 1.0f, 0, random(), 0, 0};
    ask.top_logprobs = 20;
    asks.push_back(ask);
  }
  Launched launched(rows, asks);
  const std::vector<int32_t> all = [&] {
    launched.Run();
    return ToHost(launched.tokens);
  }();
  const std::vector<SampleResultSm90> results = ToHost(launched.results);
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  SENKO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  SampleSm90(launched.Params(), stream);
  SENKO_CUDA(cudaStreamEndCapture(stream, &graph));
  SENKO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (const int32_t live : {40, 1, 0, 17, 39}) {
    launched.Live(live);
    launched.Poison();
    SENKO_CUDA(cudaGraphLaunch(exec, stream));
    SENKO_CUDA(cudaStreamSynchronize(stream));
    const std::vector<int32_t> tokens = ToHost(launched.tokens);
    const std::vector<SampleResultSm90> now = ToHost(launched.results);
    for (int32_t i = 0; i < 40; ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(tokens[at], i < live ? all[at] : static_cast<int32_t>(0xA5A5A5A5u));
      if (i < live) {
        EXPECT_EQ(std::memcmp(&now[at].top, &results[at].top, sizeof(now[at].top)), 0) << i;
      } else {
        ExpectPoison(now[at].own);
      }
    }
  }
  SENKO_CUDA(cudaGraphExecDestroy(exec));
  SENKO_CUDA(cudaGraphDestroy(graph));
  SENKO_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace senko::ops
