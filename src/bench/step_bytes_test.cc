// Against counts by hand from the model's published shapes, and a simulation.
#include "bench/step_bytes.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "runtime/load.h"

namespace senko::bench {
namespace {

// The released model's shapes with 64 experts; no weights are read.
const runtime::LoadedModel& Slim() {
  static const runtime::LoadedModel loaded = [] {
    runtime::LoadOptions options;
    options.directory = std::string(SENKO_SOURCE_DIR) + "/models/v41-flash-slim";
    options.load_format = "dummy";
    return runtime::LoadModel(options);
  }();
  return loaded;
}

constexpr double kFp8 = 1 + 1.0 / (32 * 32), kFp4 = 0.5 + 1.0 / 32;

TEST(StepBytes, DistinctExpertsAreWhatDrawingThemGives) {
  EXPECT_DOUBLE_EQ(ExpectedExperts(64, 6, 1), 6);
  EXPECT_NEAR(ExpectedExperts(64, 6, 4096), 64, 1e-9);
  std::mt19937 random(std::random_device{}());
  for (const int64_t rows : {2, 8, 64}) {
    constexpr int kDraws = 4000;
    double sum = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      uint64_t all = 0;
      for (int64_t r = 0; r < rows; ++r) {
        uint64_t row = 0;
        while (std::popcount(row) < 6) row |= uint64_t{1} << (random() % 64);
        all |= row;
      }
      sum += std::popcount(all);
    }
    // At most 64 values around the mean: its error has a deviation below 8 / sqrt(4000), far below a half.
    EXPECT_NEAR(ExpectedExperts(64, 6, rows), sum / kDraws, 0.5) << rows;
  }
}

TEST(StepBytes, AnOperatorReadsItsWeightsAndItsRows) {
  const auto bytes = StepBytes(*Slim().model, {1, 8192, 1});
  constexpr double kLayers = 40;
  const double expert = 3 * 5120.0 * 2304;
  EXPECT_NEAR(bytes.at("experts") / kLayers, 6 * expert * kFp4, 2 * (5120 + 6 * (2 * 2304 + 5120)) + 1.0);
  EXPECT_NEAR(bytes.at("shared_expert") / kLayers, expert * kFp8, 4 * (5120 + 2304) + 1.0);
  EXPECT_DOUBLE_EQ(bytes.at("wq_b") / kLayers, 32768.0 * 1280 * kFp8 + 2 * (1280 + 32768));
  EXPECT_DOUBLE_EQ(bytes.at("output_proj") / kLayers, (8192.0 * 4096 + 5120.0 * 8192) * kFp8 + 2 * (32768 + 5120));
  EXPECT_GT(bytes.at("select"), 0);
  EXPECT_EQ(bytes.count("engram_gather"), 0u);
}

TEST(StepBytes, WeightsAreReadOnceWhateverTheBatch) {
  const model::Model& model = *Slim().model;
  const double head = 2.0 * 129280 * 5120;
  EXPECT_NEAR(WeightBytes(model, 1), static_cast<double>(model.weights().ActiveBytes(6)) - head, 1.0);
  EXPECT_NEAR(WeightBytes(model, 1 << 20), static_cast<double>(model.weights().ActiveBytes(64)) - head, 1.0);
  const auto one = StepBytes(model, {1, 8192, 1}), many = StepBytes(model, {64, 8192, 1});
  EXPECT_LT(many.at("wq_b"), 1.2 * one.at("wq_b"));
  EXPECT_LT(many.at("experts"), 64.0 / 6 * 1.2 * one.at("experts"));
  // The prompt's keys are every sequence's.
  EXPECT_LT(many.at("select"), 1.1 * one.at("select"));
}

TEST(StepBytes, KeysGrowWithTheContextAndEntriesStop) {
  const model::Model& model = *Slim().model;
  const auto near = StepBytes(model, {1, 8192, 1}), far = StepBytes(model, {1, 65536, 1});
  EXPECT_DOUBLE_EQ(near.at("attention"), far.at("attention"));
  EXPECT_GT(far.at("select"), 4 * near.at("select"));
  EXPECT_EQ(StepBytes(model, {1, 256, 1}).count("select"), 0u);  // all entries are taken
  EXPECT_GT(KvBytes(model.config(), 65536), KvBytes(model.config(), 8192));
}

}  // namespace
}  // namespace senko::bench
