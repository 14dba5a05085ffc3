#include "runtime/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace senko::runtime {
namespace {

config::PageLayout Pages(int64_t page_bytes) {
  config::PageLayout layout;
  layout.block_size = 128;
  layout.page_bytes = page_bytes;
  return layout;
}
config::SlotLayout Slots(int64_t slot_bytes) {
  config::SlotLayout layout;
  layout.slot_bytes = slot_bytes;
  return layout;
}
MemoryRequest Ask(int64_t bytes, int64_t length, int64_t sequences) {
  MemoryRequest request;
  request.kv_cache_memory_bytes = bytes;
  request.max_model_len = length;
  request.max_num_seqs = sequences;
  request.max_positions = 4096;
  return request;
}

TEST(MemoryPlan, SlotsFirstThenPages) {
  const MemoryPlan plan = PlanMemory(Pages(1000), Slots(500), Ask(12000, 1024, 4));
  EXPECT_EQ(plan.num_slots, 4);
  EXPECT_EQ(plan.num_pages, 10);
  EXPECT_EQ(plan.max_model_len, 1024);
  EXPECT_LE(plan.slot_bytes + plan.page_bytes, 12000);
}

TEST(MemoryPlan, NoMoreThanCanBeUsed) {
  EXPECT_EQ(PlanMemory(Pages(1000), Slots(500), Ask(1 << 30, 1000, 4)).num_pages, 4 * 8);
}

TEST(MemoryPlan, ALengthThatNobodyAskedForShrinks) {
  EXPECT_EQ(PlanMemory(Pages(1000), Slots(500), Ask(5000, 0, 4)).max_model_len, 3 * 128);
  MemoryRequest request = Ask(0, 0, 1);
  request.default_bytes = 3500;
  EXPECT_EQ(PlanMemory(Pages(1000), Slots(500), request).num_pages, 3);
}

TEST(MemoryPlan, RefusesWithTheSumsAndWhatFits) {
  try {
    PlanMemory(Pages(1000), Slots(500), Ask(12000, 2048, 4));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), testing::HasSubstr("16000 bytes"));            // the pages
    EXPECT_THAT(error.what(), testing::HasSubstr("--max-model-len 1280 "));  // the longest that fits
  }
  try {
    PlanMemory(Pages(1000), Slots(500), Ask(9000, 1024, 4));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--max-num-seqs 2 "));
  }
  EXPECT_THROW(PlanMemory(Pages(1000), Slots(500), Ask(100, 0, 4)), Error);
  EXPECT_THROW(PlanMemory(Pages(1000), Slots(500), Ask(12000, 4097, 4)), Error);
}

TEST(MemoryPlan, WithoutGlobalKvPagesAreOnlyCounted) {
  const MemoryPlan plan = PlanMemory(Pages(0), Slots(500), Ask(2000, 1024, 4));
  EXPECT_EQ(plan.num_pages, 32);
  EXPECT_EQ(plan.page_bytes, 0);
}

}  // namespace
}  // namespace senko::runtime
