// The truth: one dot product at a time, in double, straight from the stored bytes.
#include <cstring>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/linear/weight_at.h"

namespace senko::ops {

float WeightAt(const WeightView& w, int64_t n, int64_t k) {
  switch (w.format) {
    case WeightFormat::kFp8: {
      const float scale = numerics::Ue8m0ToFloat(w.scale[n / 32 * ((w.in + 31) / 32) + k / 32]);
      return numerics::MultiplyRn(numerics::E4m3ToFloat(w.data[n * w.in + k]), scale);
    }
    case WeightFormat::kFp4: {
      const uint8_t pair = w.data[n * (w.in / 2) + k / 2];
      const float scale = numerics::Ue8m0ToFloat(w.scale[n * (w.in / 32) + k / 32]);
      return numerics::MultiplyRn(numerics::E2m1ToFloat((k & 1) != 0 ? pair >> 4 : pair & 0xF), scale);
    }
    case WeightFormat::kBf16: {
      uint16_t code;
      std::memcpy(&code, w.data + 2 * (n * w.in + k), sizeof(code));
      return numerics::Bf16ToFloat(code);
    }
    case WeightFormat::kF32: {
      float value;
      std::memcpy(&value, w.data + 4 * (n * w.in + k), sizeof(value));
      return value;
    }
  }
  SENKO_CHECK(false);
}

WeightView WeightView::Rows(int64_t begin, int64_t count) const {
  SENKO_CHECK(begin >= 0 && count >= 0 && begin + count <= out);
  SENKO_CHECK(format != WeightFormat::kFp8 || begin % 32 == 0);
  WeightView rows = *this;
  rows.out = count;
  rows.data = data + begin * row_bytes();
  if (format == WeightFormat::kFp8) rows.scale = scale + begin / 32 * ((in + 31) / 32);
  if (format == WeightFormat::kFp4) rows.scale = scale + begin * (in / 32);
  return rows;
}

void LinearReference(const LinearParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.weight.out, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t r = 0; r < p.rows; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < p.weight.in; ++k) {
          sum += static_cast<double>(p.x[r * p.x_stride + k]) * WeightAt(p.weight, n, k);
        }
        const float value = static_cast<float>(sum);
        p.y[r * p.y_stride + n] = p.round_bf16 ? numerics::RoundToBf16(value) : value;
      }
    }
  });
}

void RoundActivationsReference(const float* x, float* xq, int64_t rows, int64_t cols, ThreadPool& pool) {
  SENKO_CHECK(cols % numerics::kFp8Block == 0);
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * cols; i < end * cols; i += numerics::kFp8Block) {
      float block[numerics::kFp8Block];
      uint8_t codes[numerics::kFp8Block], scale;
      for (int j = 0; j < numerics::kFp8Block; ++j) block[j] = numerics::RoundToBf16(x[i + j]);
      numerics::QuantiseFp8(block, codes, &scale);
      numerics::DequantiseFp8(codes, scale, xq + i);
    }
  });
}

}  // namespace senko::ops
