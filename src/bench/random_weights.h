// Weights of random codes for benchmarks: values do not matter, NaN codes and cached bytes do.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "ops/linear/linear.h"
#include "tensor/buffer.h"

namespace senko::bench {

// Enough distinct copies of one weight that a walk over them outruns the last-level cache, as a model's layers do.
class WeightPool {
 public:
  WeightPool(ops::WeightFormat format, int64_t out, int64_t in, int64_t total_bytes) {
    ops::WeightView view;
    view.format = format;
    view.out = out;
    view.in = in;
    const int64_t data = out * view.row_bytes(), scales = view.bytes() - data;
    const int64_t copies = std::max<int64_t>(1, total_bytes / view.bytes());
    bytes_ = Buffer<uint8_t>(static_cast<size_t>(copies * view.bytes()));
    for (size_t i = 0; i + 16 <= bytes_.size(); i += 16) {
      const Philox draw = PhiloxDraw(1, i, 0);
      std::memcpy(bytes_.data() + i, draw.word, 16);
    }
    for (int64_t c = 0; c < copies; ++c) {
      uint8_t* base = bytes_.data() + c * view.bytes();
      Tame(format, base, data);
      std::memset(base + data, 118, static_cast<size_t>(scales));  // 2^-9
      view.data = base;
      view.scale = scales > 0 ? base + data : nullptr;
      views_.push_back(view);
    }
  }
  const ops::WeightView& Next() { return views_[next_++ % views_.size()]; }
  const std::vector<ops::WeightView>& views() const { return views_; }

 private:
  // Clears the bit that makes a code NaN, infinite or huge.
  static void Tame(ops::WeightFormat format, uint8_t* data, int64_t n) {
    if (format == ops::WeightFormat::kFp8) {
      for (int64_t i = 0; i < n; ++i) data[i] &= 0xBF;
    } else if (format == ops::WeightFormat::kBf16) {
      for (int64_t i = 1; i < n; i += 2) data[i] = static_cast<uint8_t>((data[i] & 0x80) | 0x3C);
    } else if (format == ops::WeightFormat::kF32) {
      for (int64_t i = 3; i < n; i += 4) data[i] = static_cast<uint8_t>((data[i] & 0x80) | 0x3C);
    }
  }

  Buffer<uint8_t> bytes_;
  std::vector<ops::WeightView> views_;
  size_t next_ = 0;
};

// Values in about [-2, 2], exact in bf16.
inline Buffer<float> RandomFloats(int64_t n, uint64_t seed) {
  Buffer<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 1).word[0];
    out[static_cast<size_t>(i)] = static_cast<float>(static_cast<int32_t>(word % 257) - 128) / 64.0f;
  }
  return out;
}

}  // namespace senko::bench
