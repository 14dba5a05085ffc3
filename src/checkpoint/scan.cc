#include "checkpoint/scan.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "checkpoint/problem_list.h"

namespace senko::checkpoint {
namespace {

constexpr int64_t kChunkElements = 1 << 20;
constexpr uint8_t kAbsurdScale = 127 + 32;

enum Finding { kNan, kInfinite, kAbsurd, kNumFindings };
constexpr const char* kFindingNames[kNumFindings] = {"NaN values", "infinite values", "scales above 2^32"};

// Whether the element at `data` is of the given kind.
bool IsNanFp8(const std::byte* data) { return (static_cast<uint8_t>(*data) & 0x7F) == 0x7F; }
bool IsNanScale(const std::byte* data) { return static_cast<uint8_t>(*data) == 255; }
bool IsAbsurdScale(const std::byte* data) {
  const uint8_t code = static_cast<uint8_t>(*data);
  return code > kAbsurdScale && code != 255;
}
uint32_t Magnitude16(const std::byte* data) {
  uint16_t bits;
  std::memcpy(&bits, data, 2);
  return bits & 0x7FFFu;
}
uint32_t Magnitude32(const std::byte* data) {
  uint32_t bits;
  std::memcpy(&bits, data, 4);
  return bits & 0x7FFFFFFFu;
}
bool IsNanBf16(const std::byte* data) { return Magnitude16(data) > 0x7F80u; }
bool IsInfBf16(const std::byte* data) { return Magnitude16(data) == 0x7F80u; }
bool IsNanF32(const std::byte* data) { return Magnitude32(data) > 0x7F800000u; }
bool IsInfF32(const std::byte* data) { return Magnitude32(data) == 0x7F800000u; }

struct Tally {
  int64_t count[kNumFindings] = {};
  int64_t first[kNumFindings] = {-1, -1, -1};
};

template <typename Test>
void Count(std::span<const std::byte> bytes, size_t width, int64_t base, Test test, Finding finding, Tally* tally) {
  int64_t count = 0;
  for (size_t at = 0; at < bytes.size(); at += width) count += test(&bytes[at]) ? 1 : 0;
  if (count == 0) return;
  tally->count[finding] += count;
  for (size_t at = 0; at < bytes.size(); at += width) {
    if (!test(&bytes[at])) continue;
    tally->first[finding] = base + static_cast<int64_t>(at / width);
    return;
  }
}

Tally ScanChunk(DType dtype, std::span<const std::byte> bytes, int64_t base) {
  Tally tally;
  switch (dtype) {
    case DType::kF8E4M3:
      Count(bytes, 1, base, IsNanFp8, kNan, &tally);
      break;
    case DType::kF8E8M0:
      Count(bytes, 1, base, IsNanScale, kNan, &tally);
      Count(bytes, 1, base, IsAbsurdScale, kAbsurd, &tally);
      break;
    case DType::kBF16:
      Count(bytes, 2, base, IsNanBf16, kNan, &tally);
      Count(bytes, 2, base, IsInfBf16, kInfinite, &tally);
      break;
    case DType::kF32:
      Count(bytes, 4, base, IsNanF32, kNan, &tally);
      Count(bytes, 4, base, IsInfF32, kInfinite, &tally);
      break;
    default:
      break;  // every e2m1 pair is a number
  }
  return tally;
}

}  // namespace

void ScanValues(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& expected, ThreadPool* pool,
                const ProgressSink& progress) {
  ProblemList problems;
  const uint64_t total = checkpoint.total_bytes();
  uint64_t done = 0;
  for (const ExpectedTensor& wanted : expected) {
    const TensorRef& tensor = checkpoint.At(wanted.name);
    checkpoint.Advise(tensor, AccessPattern::kSequential);
    const int64_t width = static_cast<int64_t>(SizeOf(tensor.dtype));
    const int64_t elements = static_cast<int64_t>(tensor.bytes.size()) / width;
    const int64_t chunks = (elements + kChunkElements - 1) / kChunkElements;
    Tally whole;
    std::mutex mutex;
    pool->ParallelFor(chunks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t base = chunk * kChunkElements, count = std::min(kChunkElements, elements - base);
        const auto bytes = tensor.bytes.subspan(static_cast<size_t>(base * width), static_cast<size_t>(count * width));
        const Tally tally = ScanChunk(tensor.dtype, bytes, base);
        const std::lock_guard lock(mutex);
        for (int f = 0; f < kNumFindings; ++f) {
          whole.count[f] += tally.count[f];
          const int64_t first = tally.first[f];
          if (first >= 0 && (whole.first[f] < 0 || first < whole.first[f])) whole.first[f] = first;
        }
      }
    });
    for (int f = 0; f < kNumFindings; ++f) {
      if (whole.count[f] == 0) continue;
      problems.Add(kFindingNames[f], wanted.name + ": " + std::to_string(whole.count[f]) + ", the first at element " +
                                         std::to_string(whole.first[f]) + " (byte " +
                                         std::to_string(whole.first[f] * width) + " of the tensor)");
    }
    done += tensor.bytes.size();
    if (progress) progress({"scanning weights", done, total, "bytes"});
  }
  problems.ThrowIfAny(ErrorCode::kNumerical, checkpoint.directory().string(), "values no model can hold");
}

}  // namespace senko::checkpoint
