// Biases, bans and penalties: the fast path gives the reference's bits, and the reference follows the definition.
#include "ops/sample/processors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/each_target.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A random set of processors over a random row.
struct Case {
  std::vector<float> logits;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<uint32_t> allowed;
  std::vector<int32_t> banned, prompt;
  std::vector<OutputCount> output;
  ProcessorParams params;

  Case(int64_t vocab, std::mt19937_64& random) {
    std::normal_distribution<float> normal(0, 4);
    const auto id = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)); };
    const auto on = [&] { return random() % 2 == 0; };
    for (int64_t v = 0; v < vocab; ++v) logits.push_back(normal(random));
    for (int i = 0; on() && i < 9; ++i) bias.emplace_back(id(), 10 * normal(random));
    for (int i = 0; on() && i < 9; ++i) banned.push_back(id());
    if (on()) {
      const int style = static_cast<int>(random() % 3);  // nearly all, any, hardly any
      for (int64_t w = 0; w < (vocab + 31) / 32; ++w) {
        const uint32_t bits = static_cast<uint32_t>(random());
        allowed.push_back(style == 0 ? (w % 5 == 0 ? ~(bits & 1) : ~0u) : style == 1 ? bits : w % 7 == 0 ? bits : 0);
      }
    }
    for (int64_t v = 0; v < vocab; ++v) {
      const bool in_prompt = random() % 5 == 0, in_output = random() % 7 == 0;
      if (in_prompt) prompt.push_back(static_cast<int32_t>(v));
      if (in_output) output.push_back({static_cast<int32_t>(v), static_cast<int32_t>(1 + random() % 5), in_prompt});
    }
    std::shuffle(prompt.begin(), prompt.end(), random);
    std::shuffle(output.begin(), output.end(), random);
    params.vocab = vocab;
    params.bias = bias;
    params.allowed = allowed.empty() ? nullptr : allowed.data();
    params.banned = banned;
    if (on()) params.repetition = 1.3f;
    if (on()) params.frequency = on() ? 0.7f : -0.7f;
    if (on()) params.presence = on() ? 1.1f : -1.1f;
    params.prompt = prompt;
    params.output = output;
  }

  int64_t Run(int64_t (*process)(const ProcessorParams&), std::vector<float>* row) {
    *row = logits;
    params.logits = row->data();
    return process(params);
  }
};

TEST(Processors, FastPathGivesTheReferencesBits) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t vocab : {1, 2, 31, 32, 33, 95, 160, 1000}) {
    for (int i = 0; i < 60; ++i) {
      Case c(vocab, random);
      std::vector<float> want, got;
      const int64_t bans = c.Run(ProcessReference, &want);
      ASSERT_EQ(bans, std::count(want.begin(), want.end(), -kInf));
      ForEachTarget([&] {
        ASSERT_EQ(c.Run(ProcessCpu, &got), bans);
        ASSERT_TRUE(SameBits(got, want)) << "vocab " << vocab << " case " << i;
      });
    }
  }
}

TEST(Processors, FollowTheDefinition) {
  // Token 0 in the prompt only, 1 in both, 2 in the answer only, 3 in neither; 4 to 7 the same with negative logits.
  const std::vector<int32_t> prompt = {0, 1, 4, 5};
  const std::vector<OutputCount> output = {{1, 3, true}, {2, 1, false}, {5, 3, true}, {6, 1, false}};
  for (auto* process : {ProcessReference, ProcessCpu}) {
    std::vector<float> row = {2, 2, 2, 2, -2, -2, -2, -2};
    ProcessorParams p;
    p.vocab = 8;
    p.logits = row.data();
    p.repetition = 2;
    p.frequency = 0.5f;
    p.presence = 0.25f;
    p.prompt = prompt;
    p.output = output;
    EXPECT_EQ(process(p), 0);
    EXPECT_EQ(row, (std::vector<float>{1, -0.75f, 0.25f, 2, -4, -5.75f, -4.75f, -2}));
  }
}

// A bias is there before a penalty looks at the sign.
TEST(Processors, BiasComesBeforePenalties) {
  const std::vector<std::pair<int32_t, float>> bias = {{0, 3.0f}, {1, -100.0f}, {0, 1.0f}};
  const std::vector<int32_t> prompt = {0};
  for (auto* process : {ProcessReference, ProcessCpu}) {
    std::vector<float> row = {-2, 5, 1};
    ProcessorParams p;
    p.vocab = 3;
    p.logits = row.data();
    p.bias = bias;
    p.repetition = 4;
    p.prompt = prompt;
    EXPECT_EQ(process(p), 0);
    EXPECT_EQ(row, (std::vector<float>{0.5f, -95, 1}));
  }
}

TEST(Processors, NothingSetKeepsEveryBit) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<float> row(500);
  for (float& x : row) {  // any bits at all, NaN too
    const uint32_t bits = static_cast<uint32_t>(random());
    std::memcpy(&x, &bits, sizeof(x));
  }
  const std::vector<uint32_t> all(16, ~0u);
  for (const uint32_t* allowed : {static_cast<const uint32_t*>(nullptr), all.data()}) {
    std::vector<float> got = row;
    ProcessorParams p;
    p.vocab = 500;
    p.logits = got.data();
    p.allowed = allowed;
    EXPECT_EQ(ProcessCpu(p), 0);
    EXPECT_TRUE(SameBits(got, row));
  }
}

// Whatever hides behind a ban, the draw refuses the row.
TEST(Processors, ABanHidesNoFault) {
  const std::vector<uint32_t> first_only(4, 1);
  const std::vector<int32_t> ids = {7, 99, 7};
  for (const float bad : {kInf, -kInf, kNan, -kNan}) {
    for (const size_t at : {size_t{7}, size_t{50}, size_t{99}}) {  // banned, not banned, banned by a mask's last word
      for (const bool masked : {false, true}) {
        for (const bool reference : {false, true}) {
          ForEachTarget([&] {
            std::vector<float> row(100, 1.5f);
            row[at] = bad;
            ProcessorParams p;
            p.vocab = 100;
            p.logits = row.data();
            if (masked) {
              p.allowed = first_only.data();
            } else {
              p.banned = ids;
            }
            const int64_t banned = reference ? ProcessReference(p) : ProcessCpu(p);
            SampleParams sample{100, row.data(), 1, 0, 1, 0, 1, 2, 3};
            sample.banned = banned;
            EXPECT_EQ(reference ? SampleReference(sample) : SampleCpu(sample), kRowNotFinite) << bad << " " << at;
          });
        }
      }
    }
  }
}

// Random bans under random cuts: the fast draw is the reference's and never a banned token.
TEST(Processors, NoBannedTokenIsDrawn) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t vocab : {1, 2, 33, 777}) {
    for (int64_t left : {int64_t{0}, int64_t{1}, std::min<int64_t>(vocab, 20)}) {
      Case c(vocab, random);
      std::vector<int32_t> ids(static_cast<size_t>(vocab));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
      std::shuffle(ids.begin(), ids.end(), random);
      c.params.allowed = nullptr;
      c.params.banned = std::span(ids).subspan(static_cast<size_t>(left));
      std::vector<float> row;
      const int64_t banned = c.Run(ProcessCpu, &row);
      ASSERT_EQ(banned, vocab - left);
      for (const float temperature : {0.0f, 1.0f, 100.0f, kInf}) {
        for (const int64_t top_k : {0, 1, 40}) {
          for (const float top_p : {1.0f, 0.5f}) {
            for (const float min_p : {0.0f, 0.01f}) {
              const SampleParams p{vocab, row.data(), temperature, top_k, top_p, min_p, random(), 0, 9, banned};
              const int64_t want = SampleReference(p);
              if (left == 0) {
                ASSERT_EQ(want, kNothingAllowed);
              } else {
                ASSERT_TRUE(want >= 0 && std::isfinite(row[static_cast<size_t>(want)]));
              }
              ForEachTarget([&] { ASSERT_EQ(SampleCpu(p), want) << vocab << " " << left << " T " << temperature; });
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
