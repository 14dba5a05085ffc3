// What the workspace says it takes is what it takes.
#include "model/workspace.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>

namespace senko::model {
namespace {

int64_t Allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TEST(Workspace, BytesAreThoseTheHeapGave) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another allocator, which does not say";
#endif
  for (const char* name : {"mini10", "ratio1_clamp", "ratio2_shared", "window_only"}) {
    SCOPED_TRACE(name);
    const config::ModelConfig config = config::LoadModelConfig(std::filesystem::path(SENKO_SOURCE_DIR) /
                                                               "tests/golden/configs" / (std::string(name) + ".json"));
    // The row sets of so many rows are megabytes; of each of some eighty blocks the allocator rounds up to a page.
    const WorkspaceLimits limits{8192, 256};
    const int64_t before = Allocated();
    const Workspace workspace(config, limits);
    const int64_t taken = Allocated() - before;
    EXPECT_GE(taken, workspace.bytes());
    EXPECT_LT(taken, workspace.bytes() + 80 * 4200);
  }
}

}  // namespace
}  // namespace senko::model
