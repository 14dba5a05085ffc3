#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "config/decoder_replay.h"
#include "config/kv_layout.h"
#include "config/layer_schedule.h"
#include "config/model_config.h"

namespace senko::config {
namespace {

ModelConfig Load(const char* name) {
  return LoadModelConfig(std::filesystem::path(SENKO_SOURCE_DIR) / "models" / name / "config.json");
}

// The schedule table of model.md 1.2, row by row.
TEST(LayerSchedule, IsTheReleasedTable) {
  const auto plans = MakeLayerSchedule(Load("deepseek-v4.1-flash"));
  ASSERT_EQ(plans.size(), 40u);
  for (const LayerPlan& plan : plans) {
    const int64_t l = plan.layer;
    SCOPED_TRACE(l);
    EXPECT_EQ(plan.ratio, l < 2 ? 0 : l < 20 ? 2 : 1);
    EXPECT_EQ(plan.kv_source, l < 2 ? -1 : l < 8 ? 2 : l < 14 ? 8 : l < 20 ? 14 : 20);
    EXPECT_EQ(plan.index_source, l < 24 ? plan.kv_source : l / 4 * 4);
    const LayerMode mode = l < 2                                      ? LayerMode::kWindow
                           : l == 2 || l == 8 || l == 14 || l == 20   ? LayerMode::kFull
                           : l == 24 || l == 28 || l == 32 || l == 36 ? LayerMode::kReindex
                                                                      : LayerMode::kReuse;
    EXPECT_EQ(plan.mode, mode);
    EXPECT_EQ(plan.candidate_source, l == 20);
    EXPECT_EQ(plan.restricted_to_candidates, l >= 24);
    EXPECT_EQ(plan.engram_slot, l == 1 ? 0 : l == 14 ? 1 : -1);
    EXPECT_EQ(plan.compressed_rope, l >= 2);
  }
}

// What runs behind the seam owns no KV in any model, so every prompt can be trimmed there; where no layer owns any,
// trimming skips nothing.
TEST(DecoderReplay, NoKvSourceLiesBehindTheSeam) {
  int without = 0;
  std::vector<std::filesystem::path> files;
  const std::filesystem::path root(SENKO_SOURCE_DIR);
  for (const auto& entry : std::filesystem::directory_iterator(root / "tests/golden/configs")) {
    files.push_back(entry.path());
  }
  for (const auto& entry : std::filesystem::directory_iterator(root / "models")) {
    if (std::filesystem::exists(entry.path() / "config.json")) files.push_back(entry.path());
  }
  ASSERT_GE(files.size(), 8u);
  for (const std::filesystem::path& file : files) {
    SCOPED_TRACE(file.string());
    const ModelConfig config = LoadModelConfig(file);
    const int64_t seam = config.last_kv_source(), prompt = 100 * config.window;
    for (const LayerPlan& plan : MakeLayerSchedule(config)) {
      EXPECT_FALSE(plan.owns_kv && plan.layer > seam);
      EXPECT_TRUE(plan.layer != seam || plan.owns_kv);
    }
    EXPECT_EQ(FirstKeptRow(config, prompt, DecoderReplay::kFull), 0);
    EXPECT_EQ(FirstKeptRow(config, prompt, DecoderReplay::kTrim), seam < 0 ? 0 : prompt - config.window);
    without += seam < 0;
  }
  EXPECT_GT(without, 0);
}

TEST(KvLayout, ReleasedCosts) {
  const ModelConfig config = Load("deepseek-v4.1-flash");
  EXPECT_EQ(KvBytesPerToken(config), 890);
  EXPECT_EQ(WindowBytesPerSequence(config), 2703360);
  for (int64_t block : {128, 256}) EXPECT_EQ(MakePageLayout(config, block).page_bytes, 890 * block) << block;
  // At 64 tokens the 128 bytes of key scales of each of the three ratio-2 sources are padded to 256.
  EXPECT_EQ(MakePageLayout(config, 64).page_bytes, 890 * 64 + 3 * 128);
}

TEST(KvLayout, SectionsAreAlignedAndDisjoint) {
  for (const char* name : {"deepseek-v4.1-flash", "tiny", "slim"}) {
    const ModelConfig config = Load(name);
    for (int64_t block : {64, 128, 256}) {
      const PageLayout page = MakePageLayout(config, block);
      int64_t end = 0;
      for (const PageSource& source : page.sources) {
        for (auto [offset, row] : {std::pair{source.entry_offset, page.entry_stride},
                                   std::pair{source.key_value_offset, page.key_value_bytes},
                                   std::pair{source.key_scale_offset, page.key_scale_bytes}}) {
          EXPECT_EQ(offset % 256, 0);
          EXPECT_GE(offset, end);
          end = offset + source.entries_per_page * row;
        }
        EXPECT_EQ(source.entries_per_page * source.ratio, block);
      }
      EXPECT_GE(page.page_bytes, end);
      EXPECT_GE(page.page_bytes, KvBytesPerToken(config) * block);
    }
    const SlotLayout slot = MakeSlotLayout(config, 6);
    EXPECT_GE(slot.ring_rows, config.window + 6);
    EXPECT_EQ(slot.ring_rows % 16, 0);
    EXPECT_EQ(slot.PendingOffset(0), slot.RingOffset(config.num_layers + config.dspark.num_stages));
  }
}

// The bundled models exercise every kind of layer.
TEST(LayerSchedule, BundledModelsHaveEveryMode) {
  for (const char* name : {"tiny", "slim"}) {
    int seen[4] = {};
    bool candidates = false, restricted = false, engram = false;
    for (const LayerPlan& plan : MakeLayerSchedule(Load(name))) {
      ++seen[static_cast<int>(plan.mode)];
      candidates = candidates || plan.candidate_source;
      restricted = restricted || plan.restricted_to_candidates;
      engram = engram || plan.engram_slot >= 0;
    }
    for (int count : seen) EXPECT_GT(count, 0) << name;
    EXPECT_TRUE(candidates && restricted && engram) << name;
  }
}

}  // namespace
}  // namespace senko::config
