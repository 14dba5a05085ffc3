// Random weights and activations for the tests of operators that multiply by stored weights. Test code only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "hwy/targets.h"
#include "numerics/bf16.h"
#include "ops/linear/linear.h"
#include "tensor/buffer.h"

namespace senko::ops::test {

inline const char* Name(WeightFormat f) {
  return f == WeightFormat::kFp8 ? "fp8" : f == WeightFormat::kFp4 ? "fp4" : f == WeightFormat::kBf16 ? "bf16" : "f32";
}

// A weight in its stored format, at an odd address, with exactly its bytes (so a sanitizer sees an over-read).
struct Weight {
  WeightView view;
  std::vector<uint8_t> bytes;

  Weight() = default;
  Weight(WeightFormat format, int64_t out, int64_t in, std::mt19937& random) {
    view.format = format;
    view.out = out;
    view.in = in;
    const int64_t data = out * view.row_bytes();
    bytes.resize(1 + view.bytes());
    std::normal_distribution<float> normal;
    uint8_t* p = bytes.data() + 1;
    if (format == WeightFormat::kFp8 || format == WeightFormat::kFp4) {
      for (int64_t i = 0; i < data; ++i) {
        do {
          p[i] = static_cast<uint8_t>(random());
        } while (format == WeightFormat::kFp8 && (p[i] & 0x7F) == 0x7F);
      }
      for (int64_t i = data; i < view.bytes(); ++i) p[i] = static_cast<uint8_t>(112 + random() % 12);
    } else {
      for (int64_t i = 0; i < out * in; ++i) {
        const float value = normal(random);
        const uint16_t code = numerics::FloatToBf16(value);
        if (format == WeightFormat::kBf16) std::memcpy(p + 2 * i, &code, 2);
        if (format == WeightFormat::kF32) std::memcpy(p + 4 * i, &value, 4);
      }
    }
    Point();
  }
  Weight(const Weight& o) : view(o.view), bytes(o.bytes) { Point(); }
  Weight& operator=(const Weight& o) {
    view = o.view;
    bytes = o.bytes;
    Point();
    return *this;
  }

  uint8_t* data() { return bytes.data() + 1; }
  uint8_t* scales() { return bytes.data() + 1 + view.out * view.row_bytes(); }

 private:
  void Point() {
    view.data = bytes.data() + 1;
    view.scale = bytes.data() + 1 + view.out * view.row_bytes();
  }
};

inline std::vector<float> RandomFloats(int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

inline std::vector<float> Poisoned(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN());
}

inline bool SameBits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// Runs the dynamic dispatch on one target only while it lives.
class OnTarget {
 public:
  explicit OnTarget(int64_t target) { Choose(target); }
  ~OnTarget() { Choose(0); }

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace senko::ops::test
