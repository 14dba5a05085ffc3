// Tables of a written checkpoint: the views are the file's bytes; wrong tensors are named.
#include "engram/tables.h"

#include <unistd.h>

#include <random>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace senko::engram {
namespace {

class TablesTest : public testing::Test {
 protected:
  TablesTest()
      : path_(std::filesystem::temp_directory_path() /
              ("engram_tables_" + std::to_string(::getpid()) + ".safetensors")) {
    config_.engram.layers = {1, 3};
    config_.engram.rows = {50, 41};
    config_.engram.head_dim = 64;
  }
  ~TablesTest() override { std::filesystem::remove(path_); }

  void Write(int64_t rows_of_second) {
    std::vector<checkpoint::TensorSpec> specs;
    const int64_t rows[2] = {50, rows_of_second};
    for (int i = 0; i < 2; ++i) {
      const std::string prefix =
          "layers." + std::to_string(config_.engram.layers[static_cast<size_t>(i)]) + ".engram.embed.";
      specs.push_back({prefix + "weight", DType::kF8E4M3, {rows[i], 64}});
      specs.push_back({prefix + "scale", DType::kF8E8M0, {rows[i], 2}});
    }
    checkpoint::SafetensorsWriter writer(path_, specs);
    std::mt19937_64 random(1);
    for (size_t i = 0; i < specs.size(); ++i) {
      data_.emplace_back(static_cast<size_t>(specs[i].shape[0] * specs[i].shape[1]));
      for (uint8_t& b : data_.back()) b = static_cast<uint8_t>(random());
      writer.WriteAll<uint8_t>(i, data_.back());
    }
    writer.Finish();
  }

  std::filesystem::path path_;
  config::ModelConfig config_;
  std::vector<std::vector<uint8_t>> data_;
};

TEST_F(TablesTest, ViewTheFilesBytes) {
  Write(41);
  const auto checkpoint = checkpoint::Checkpoint::Open(path_);
  const Tables tables(checkpoint, config_);
  ASSERT_EQ(tables.size(), 2);
  for (int64_t i = 0; i < 2; ++i) {
    const size_t w = static_cast<size_t>(2 * i);
    EXPECT_EQ(tables[i].rows, config_.engram.rows[static_cast<size_t>(i)]);
    EXPECT_EQ(tables[i].dim, 64);
    EXPECT_TRUE(std::equal(data_[w].begin(), data_[w].end(), tables[i].values));
    EXPECT_TRUE(std::equal(data_[w + 1].begin(), data_[w + 1].end(), tables[i].scales));
    tables.WillNeed(i, std::vector<int64_t>{0, 40, 7});
    EXPECT_TRUE(std::equal(data_[w].begin(), data_[w].end(), tables[i].values));
    EXPECT_THROW(tables.WillNeed(i, std::vector<int64_t>{tables[i].rows}), std::logic_error);
    EXPECT_THROW(tables.WillNeed(i, std::vector<int64_t>{-1}), std::logic_error);
  }
}

TEST_F(TablesTest, AWrongShapeOrMissingTensorIsNamed) {
  Write(40);
  const auto checkpoint = checkpoint::Checkpoint::Open(path_);
  EXPECT_THAT([&] { Tables(checkpoint, config_); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("layers.3.engram.embed.weight is F8_E4M3 [40, 64]")));
  config_.engram.layers = {1, 5};
  EXPECT_THAT([&] { Tables(checkpoint, config_); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("layers.5.engram.embed.weight")));
}

}  // namespace
}  // namespace senko::engram
