// For tests: runs a check once per SIMD target that this machine supports.
#pragma once

#include "gtest/gtest.h"
#include "hwy/highway.h"

namespace senko::ops {

// Calls check() with each supported Highway target chosen in turn, then restores the machine's own choice.
// On one thread, with no operator running elsewhere.
template <typename Check>
void ForEachTarget(Check check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace senko::ops
