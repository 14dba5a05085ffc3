// Byte layouts of packed KV rows (model.md 4, architecture.md section 3).
//
//   window row   [dim e4m3][dim/32 ue8m0]             512 -> 528 bytes
//   entry        [dim/2 e2m1 pairs][dim/16 e4m3]      512 -> 288 bytes
//   index key    [dim/2 e2m1 pairs] and, in a section of their own, [dim/32 ue8m0]    128 -> 64 + 4 bytes
//
// Rows start on 16-byte boundaries: strides are padded to 16 where a small configuration needs it.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace senko::numerics {

SENKO_HD constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

SENKO_HD constexpr int64_t WindowRowBytes(int64_t dim) { return dim + dim / 32; }
SENKO_HD constexpr int64_t WindowRowStride(int64_t dim) { return RoundUp(WindowRowBytes(dim), 16); }
SENKO_HD constexpr int64_t EntryBytes(int64_t dim) { return dim / 2 + dim / 16; }
SENKO_HD constexpr int64_t EntryStride(int64_t dim) { return RoundUp(EntryBytes(dim), 16); }
SENKO_HD constexpr int64_t IndexKeyValueBytes(int64_t dim) { return dim / 2; }
SENKO_HD constexpr int64_t IndexKeyScaleBytes(int64_t dim) { return dim / 32; }

}  // namespace senko::numerics
