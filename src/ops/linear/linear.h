// y = x W^T for the checkpoint's stored weight formats (model.md 2, 3.0: lin8, linb, linf).
//
// Canonical arithmetic (architecture.md section 4): an output depends on its row of x and its row of W only, never
// on the batch, the thread count or the kernel variant. K is summed in chunks of kChunk from zero, chunks added in
// order; inside a chunk the order is fixed per weight format (linear/README.md).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace senko::ops {

enum class WeightFormat : uint8_t {
  kFp8,   // e4m3 [out, in]; scale ue8m0 [ceil(out/32), ceil(in/32)]
  kFp4,   // e2m1 pairs [out, in/2], element 2k in the low nibble; scale ue8m0 [out, in/32]
  kBf16,  // [out, in]
  kF32,   // [out, in]
};

// A weight as the checkpoint stores it, usually inside a file mapping. Any alignment.
struct WeightView {
  WeightFormat format = WeightFormat::kBf16;
  int64_t out = 0;
  int64_t in = 0;
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;  // kFp8 and kFp4

  int64_t row_bytes() const {
    return format == WeightFormat::kFp4    ? in / 2
           : format == WeightFormat::kFp8  ? in
           : format == WeightFormat::kBf16 ? 2 * in
                                           : 4 * in;
  }
  // Bytes a full pass over the weight reads.
  int64_t bytes() const {
    const int64_t scales = format == WeightFormat::kFp4   ? out * (in / 32)
                           : format == WeightFormat::kFp8 ? ((out + 31) / 32) * ((in + 31) / 32)
                                                          : 0;
    return out * row_bytes() + scales;
  }
  // Rows [begin, begin + count); for kFp8 begin must be a multiple of 32.
  WeightView Rows(int64_t begin, int64_t count) const;
};

inline constexpr int64_t kChunk = 1024;  // canonical K chunk

struct LinearParams {
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, in], row stride x_stride floats; already activation-rounded where lin8 asks
  int64_t x_stride = 0;
  WeightView weight;
  float* y = nullptr;  // [rows, out], row stride y_stride floats; never aliases x
  int64_t y_stride = 0;
  bool round_bf16 = false;  // round the output to bf16 (lin8 and linb; not linf)
};

void LinearReference(const LinearParams& p, ThreadPool& pool);
void LinearCpu(const LinearParams& p, ThreadPool& pool);

// Several linears over the same x (wq_a with wkv, w1 with w3, ...): one parallel loop, same results as one by one.
void LinearManyCpu(const LinearParams* p, int count, ThreadPool& pool);

// lin8's activation rounding: xq = qdq_fp8_32(bf16(x)) per row in blocks of 32 columns. May run in place.
void RoundActivationsReference(const float* x, float* xq, int64_t rows, int64_t cols, ThreadPool& pool);
void RoundActivationsCpu(const float* x, float* xq, int64_t rows, int64_t cols, ThreadPool& pool);

}  // namespace senko::ops
