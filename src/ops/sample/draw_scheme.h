// The arithmetic that defines a draw, shared by every backend so that all agree on the token.
//
// A token's weight is e^((logit - max) / T) in fixed point, so sums are exact and their order is free. Kept
// is a prefix of the order (logit descending, id ascending): first min_p, then top_k, then top_p of what is
// left; the drawn token is the one at a uniform offset into the kept weights laid out by ascending id.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "base/random.h"
#include "ops/sample/sample.h"

namespace senko::ops {

inline constexpr int kWeightBits = 44;      // the most likely token weighs 2^44
inline constexpr double kLightest = -32.0;  // exponents below it weigh 0: 2^44 * e^-32 < 1/4

SENKO_HD inline bool IsGreedy(float temperature) { return !(temperature >= kGreedyTemperature); }

// Constants of the exponential: no fused multiply-adds, so that scalar code and every SIMD target agree in
// every bit.
namespace exp_scheme {
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2High = 0.6931471803691238;  // 21 trailing zero bits: n * high is exact
inline constexpr double kLn2Low = 1.9082149292705877e-10;
inline constexpr double kRound = 6755399441055744.0;      // 1.5 * 2^52: adding it rounds to an integer in the low bits
inline constexpr double kToInteger = 4503599627370496.0;  // 2^52
struct Coefficients {
  double of[14];
};
inline constexpr Coefficients kTaylor = {{1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                          1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                                          1.0 / 6, 0.5, 1.0, 1.0}};
}  // namespace exp_scheme

// exponent = (logit - max) / T <= 0.
SENKO_HD inline double Exponent(float logit, float max, double inverse_temperature) {
  return (static_cast<double>(logit) - static_cast<double>(max)) * inverse_temperature;
}

// round(2^44 * e^exponent), ties to even, for exponents of kLightest and above.
SENKO_HD inline uint64_t HeavyWeight(double exponent) {
  const double shifted = exponent * exp_scheme::kLog2E + exp_scheme::kRound;
  const double n = shifted - exp_scheme::kRound;
  const double r = (exponent - n * exp_scheme::kLn2High) - n * exp_scheme::kLn2Low;
  constexpr exp_scheme::Coefficients taylor = exp_scheme::kTaylor;  // a local one, which a GPU sees too
  double p = taylor.of[0];
  for (int i = 1; i < 14; ++i) p = p * r + taylor.of[i];
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  const uint64_t scale_bits = (bits + 1023 + kWeightBits) << 52;  // the low bits of `shifted` are n
  double scale;
  std::memcpy(&scale, &scale_bits, sizeof(scale));
  const double rounded = p * scale + exp_scheme::kToInteger;
  std::memcpy(&bits, &rounded, sizeof(bits));
  return bits & ((uint64_t{1} << 52) - 1);
}

// The same for any exponent; NaN weighs nothing.
SENKO_HD inline uint64_t FixedWeight(double exponent) { return exponent >= kLightest ? HeavyWeight(exponent) : 0; }

// Exponents below it are dropped by min_p. -infinity when off; min_p above 1 leaves the most likely tokens,
// as 1 does.
inline double LeastExponent(float min_p) {
  return min_p >= 1 ? 0.0 : min_p > 0 ? std::log(static_cast<double>(min_p)) : -HUGE_VAL;
}

// The mass the kept prefix must reach.
SENKO_HD inline uint64_t NucleusMass(float top_p, uint64_t total) {
  if (top_p >= 1) return total;
  const double mass = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const uint64_t target = mass > 1 ? static_cast<uint64_t>(mass) : 1;
  return target < total ? target : total;
}

// Uniform in [0, mass), to within 2^-64 * mass.
SENKO_HD inline uint64_t DrawOffset(const SampleParams& p, uint64_t mass) {
  const Philox draw = PhiloxDraw(p.seed, p.position, p.choice);
  const uint64_t word = draw.word[0] | (uint64_t{draw.word[1]} << 32);
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<uint64_t>((Wide{word} * mass) >> 64);
}

}  // namespace senko::ops
