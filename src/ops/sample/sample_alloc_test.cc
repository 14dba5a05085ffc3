// Drawing allocates for a thread's first calls only.
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/count_allocations.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/processors.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

struct Work {
  std::vector<float> logits;
  std::vector<uint32_t> allowed;
  std::vector<LogprobEntry> top = std::vector<LogprobEntry>(20);
  std::vector<int32_t> ids = {1, 5, 9};
  std::vector<OutputCount> output = {{3, 1, false}, {5, 2, true}};

  explicit Work(int64_t vocab) : logits(static_cast<size_t>(vocab)), allowed(static_cast<size_t>(vocab / 32 + 1), 7) {
    std::mt19937_64 random(std::random_device{}());
    std::normal_distribution<float> normal(0, 1);
    for (float& l : logits) l = normal(random);
  }

  // Every way through a draw, at most `top_k` kept by number.
  void Run(int64_t top_k) {
    const int64_t vocab = static_cast<int64_t>(logits.size());
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int64_t k : {int64_t{0}, top_k}) {
        for (const float top_p : {1.0f, 0.99f}) {
          for (const float min_p : {0.0f, 0.01f}) {
            EXPECT_GE(SampleCpu({vocab, logits.data(), temperature, k, top_p, min_p, 1, 2, 3}), 0);
          }
        }
      }
    }
    LogprobEntry entry;
    EXPECT_TRUE(LogprobsCpu({vocab, logits.data(), 4, &entry, top}));
  }
};

TEST(SampleAllocations, CountsWhatItShould) {
  const int64_t before = allocations;
  std::vector<int> v(100);
  v[0] = 1;
  EXPECT_EQ(allocations - before, 1);
}

TEST(SampleAllocations, NoneAfterTheFirstCalls) {
  Work work(50000), small(999);
  for (const int64_t top_k : {4000, 30}) work.Run(top_k);
  small.Run(50);  // the top of a small vocabulary is found in another way
  const int64_t before = allocations;
  for (int i = 0; i < 3; ++i) work.Run(4000);
  for (const int64_t top_k : {30, 7}) work.Run(top_k);
  small.Run(50);
  EXPECT_EQ(allocations - before, 0);
}

TEST(SampleAllocations, ProcessorsNeverAllocate) {
  Work work(1000);
  const int64_t before = allocations;
  ProcessorParams p;
  p.vocab = 1000;
  p.logits = work.logits.data();
  p.allowed = work.allowed.data();
  p.banned = p.prompt = work.ids;
  p.repetition = 2;
  p.presence = 1;
  p.output = work.output;
  EXPECT_GE(ProcessCpu(p), 0);
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace senko::ops
