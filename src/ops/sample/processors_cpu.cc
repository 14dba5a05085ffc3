// Lists are scattered into the row; only a mask of the vocabulary is a pass over it, which skips words that allow all.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/processors_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <cmath>
#include <numeric>
#include <utility>

#include "numerics/simd/lanes-inl.h"
#include "ops/sample/processors.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;

HWY_ALIGN constexpr uint32_t kBits[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

// The whole words of a mask. Returns how many finite logits became -infinity.
int64_t MaskWords(const uint32_t* allowed, int64_t words, float* logits) {
  const v::NativeF32 d;
  const v::NativeU32 du;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  const auto field = hn::Set(du, 0x7F800000u);
  const auto lowest = hn::Set(du, 0xFF800000u);
  auto banned = hn::Zero(du);  // counts, per lane
  for (int64_t word = 0; word < words; ++word) {
    if (allowed[word] == ~uint32_t{0}) continue;
    const auto mask = hn::Set(du, allowed[word]);
    for (int64_t j = 0; j < 32; j += kLanes) {
      float* const at = logits + word * 32 + j;
      const auto bits = hn::BitCast(du, hn::LoadU(d, at));
      const auto ban = hn::Eq(hn::And(mask, hn::Load(du, kBits + j)), hn::Zero(du));
      const auto infinite = hn::Eq(hn::And(bits, field), field);
      banned = hn::Sub(banned, hn::VecFromMask(du, hn::AndNot(infinite, ban)));
      hn::StoreU(hn::BitCast(d, hn::IfThenElse(ban, lowest, bits)), d, at);
    }
  }
  alignas(64) uint32_t counts[16];
  hn::Store(banned, du, counts);
  return std::accumulate(counts, counts + kLanes, int64_t{0});
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(MaskWords);

namespace {

// 1 when the logit was finite.
int64_t Ban(float& x) { return std::isfinite(std::exchange(x, -HUGE_VALF)) ? 1 : 0; }

inline float Repeated(float x, float repetition) { return x > 0 ? x / repetition : x * repetition; }

}  // namespace

int64_t ProcessCpu(const ProcessorParams& p) {
  for (const auto& [token, bias] : p.bias) p.logits[token] += bias;

  int64_t bans = 0;
  if (p.allowed != nullptr) {
    const int64_t words = p.vocab / 32;
    bans = HWY_DYNAMIC_DISPATCH(MaskWords)(p.allowed, words, p.logits);
    for (int64_t v = words * 32; v < p.vocab; ++v) {
      if ((p.allowed[words] >> (v % 32) & 1) == 0) bans += Ban(p.logits[v]);
    }
  }
  for (const int32_t token : p.banned) bans += Ban(p.logits[token]);

  if (p.repetition != 1) {
    for (const int32_t token : p.prompt) p.logits[token] = Repeated(p.logits[token], p.repetition);
  }
  for (const OutputCount& o : p.output) {
    float x = p.logits[o.token];
    if (!o.in_prompt) x = Repeated(x, p.repetition);
    x -= p.frequency * static_cast<float>(o.count);
    p.logits[o.token] = x - p.presence;
  }
  return bans;
}

}  // namespace senko::ops
#endif
