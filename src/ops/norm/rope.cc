// Rotary frequencies and tables. One host-made table serves every backend, so the recipe is bit-exact by
// contract.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/norm/norm.h"

namespace senko::ops {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The rotary pair (a real number) that turns `rotations` times over the original context.
double CorrectionDim(const RopeSpec& spec, double rotations) {
  return static_cast<double>(spec.rope_dim) *
         std::log(static_cast<double>(spec.original_max_positions) / (rotations * 2.0 * kPi)) /
         (2.0 * std::log(spec.base));
}

}  // namespace

std::vector<float> RopeInvFreq(const RopeSpec& spec) {
  SENKO_CHECK(spec.rope_dim > 0 && spec.rope_dim % 2 == 0 && spec.base > 1.0);
  const int64_t pairs = spec.rope_dim / 2;
  std::vector<float> inv_freq(static_cast<size_t>(pairs));
  for (int64_t n = 0; n < pairs; ++n) {
    const double exponent = static_cast<double>(2 * n) / static_cast<double>(spec.rope_dim);
    // The power is rounded to float32 before the division: dividing first in float64 differs by 1 to 2 ulp.
    const float power = static_cast<float>(std::pow(spec.base, exponent));
    inv_freq[static_cast<size_t>(n)] = 1.0f / power;
  }
  if (spec.original_max_positions == 0) return inv_freq;

  SENKO_CHECK(spec.factor > 0 && spec.beta_fast > 0 && spec.beta_slow > 0);
  const double low = std::max(std::floor(CorrectionDim(spec, spec.beta_fast)), 0.0);
  double high = std::min(std::ceil(CorrectionDim(spec, spec.beta_slow)), static_cast<double>(spec.rope_dim - 1));
  if (low == high) high += 0.001;
  const float ramp_begin = static_cast<float>(low);
  const float ramp_length = static_cast<float>(high - low);
  const float factor = static_cast<float>(spec.factor);
  for (int64_t n = 0; n < pairs; ++n) {
    float& f = inv_freq[static_cast<size_t>(n)];
    const float ramp = std::clamp((static_cast<float>(n) - ramp_begin) / ramp_length, 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    f = f / factor * (1.0f - keep) + f * keep;
  }
  return inv_freq;
}

void RopeTable(const int64_t* positions, int64_t rows, const float* inv_freq, int64_t pairs, float* table) {
  for (int64_t r = 0; r < rows; ++r) {
    const float position = static_cast<float>(positions[r]);
    float* row = table + r * pairs * 2;
    for (int64_t n = 0; n < pairs; ++n) {
      // The angle is a float32 by definition; its cosine and sine are taken in float64 and rounded once.
      const double angle = static_cast<double>(position * inv_freq[n]);
      row[2 * n] = static_cast<float>(std::cos(angle));
      row[2 * n + 1] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace senko::ops
