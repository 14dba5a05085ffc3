// Picks the score kernel through Highway's dispatch, so that it follows the same (cached, testable) choice as
// every other operator; VNNI is finer than Highway's targets here and is asked for once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index_score/score_kernel.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <hwy/highway.h>

#include "ops/index_score/score_tile.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

ScoreKernel TargetKernel(bool has_vnni) {
#if HWY_TARGET == HWY_AVX3
  return has_vnni ? VnniScoreKernel() : Avx2ScoreKernel();
#elif HWY_TARGET == HWY_AVX2
  (void)has_vnni;
  return Avx2ScoreKernel();
#else
  (void)has_vnni;
  return PortableScoreKernel();
#endif
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(TargetKernel);

ScoreKernel ChooseScoreKernel() {
#if defined(__x86_64__)
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
#else
  const bool has_vnni = false;
#endif
  return HWY_DYNAMIC_DISPATCH(TargetKernel)(has_vnni);
}

}  // namespace senko::ops
#endif
