#include "runtime/cuda/weight_upload.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "cuda/check.h"
#include "ops/mhc/mhc_sm90.h"
#include "runtime/cuda/dummy_weights.h"

namespace senko::runtime {
namespace {

constexpr size_t kStageBytes = size_t{64} << 20;
constexpr int64_t kCopyBytes = int64_t{1} << 20;  // of one thread at a time
constexpr size_t kMostWeights = 4096;             // with a name of their own

// What one piece of a stage is copied from.
struct Span {
  const uint8_t* from;
  size_t to;
  size_t bytes;
};

// Adds how long `work` takes.
template <typename Work>
void Timed(double* seconds, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  *seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

WeightUpload::WeightUpload(ThreadPool& pool) : pool_(pool), faults_(kMostWeights) {
  SENKO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  SENKO_CUDA(cudaMemsetAsync(faults_.data(), 0, faults_.bytes(), stream_));
}

WeightUpload::~WeightUpload() {
  cudaStreamSynchronize(stream_);
  for (Stage& stage : stages_) {
    if (stage.done != nullptr) cudaEventDestroy(stage.done);
    cudaFreeHost(stage.pinned);
  }
  cudaStreamDestroy(stream_);
}

// Waits until its last use has ended. Memory is taken at the first one.
WeightUpload::Stage& WeightUpload::Next() {
  Stage& stage = stages_[next_];
  next_ = (next_ + 1) % stages_.size();
  if (stage.done == nullptr) {
    SENKO_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&stage.pinned), kStageBytes, cudaHostAllocDefault));
    stage.device = cuda::DeviceBuffer<uint8_t>(kStageBytes);
    SENKO_CUDA(cudaEventCreateWithFlags(&stage.done, cudaEventDisableTiming));
  } else {
    Timed(&waiting_seconds_, [&] { SENKO_CUDA(cudaEventSynchronize(stage.done)); });
  }
  return stage;
}

void WeightUpload::Tiles(const std::string& name, std::span<const ops::WeightView> pieces, uint8_t* tiles,
                         uint8_t* scales) {
  const ops::WeightFormat format = pieces.front().format;
  const int64_t in = pieces.front().in;
  int64_t out = 0;
  for (const ops::WeightView& piece : pieces) {
    SENKO_CHECK(piece.format == format && piece.in == in && out % 64 == 0);
    out += piece.out;
    stored_bytes_ += static_cast<uint64_t>(piece.bytes());
  }
  names_.push_back(name);
  SENKO_CHECK(names_.size() <= kMostWeights);
  if (pieces.front().data == nullptr) {
    FillDummyTiles({format, out, in, tiles, scales}, tiles, scales, static_cast<uint32_t>(names_.size()), stream_);
    return;
  }
  const auto row_bytes = static_cast<size_t>(pieces.front().row_bytes());
  const int64_t scale_rows = format == ops::WeightFormat::kFp8 ? 32 : 1;  // outputs of a row of scales
  const auto scale_bytes = format == ops::WeightFormat::kBf16 ? size_t{0} : static_cast<size_t>(in / 32);
  const size_t rows_of_stage = kStageBytes / (row_bytes + scale_bytes) / 64 * 64;
  SENKO_CHECK(rows_of_stage > 0);
  size_t piece = 0;
  int64_t piece_row = 0;
  for (int64_t first = 0; first < out;) {
    const int64_t rows = std::min(out - first, static_cast<int64_t>(rows_of_stage));
    Stage& stage = Next();
    const size_t scales_at = static_cast<size_t>(rows) * row_bytes;
    std::vector<Span> spans;
    const auto add = [&](const uint8_t* from, size_t to, size_t bytes) {
      for (size_t at = 0; at < bytes; at += kCopyBytes) {
        spans.push_back({from + at, to + at, std::min(bytes - at, static_cast<size_t>(kCopyBytes))});
      }
    };
    for (int64_t done = 0; done < rows;) {
      const ops::WeightView& view = pieces[piece];
      const int64_t count = std::min(rows - done, view.out - piece_row);
      add(view.data + static_cast<size_t>(piece_row) * row_bytes, static_cast<size_t>(done) * row_bytes,
          static_cast<size_t>(count) * row_bytes);
      if (scale_bytes > 0) {
        const int64_t lines = (count + scale_rows - 1) / scale_rows;
        add(view.scale + static_cast<size_t>(piece_row / scale_rows) * scale_bytes,
            scales_at + static_cast<size_t>(done / scale_rows) * scale_bytes, static_cast<size_t>(lines) * scale_bytes);
      }
      done += count;
      piece_row += count;
      if (piece_row == view.out) ++piece, piece_row = 0;
    }
    Timed(&reading_seconds_, [&] {
      pool_.ParallelFor(std::ssize(spans), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const Span& span = spans[static_cast<size_t>(i)];
          std::memcpy(stage.pinned + span.to, span.from, span.bytes);
        }
      });
    });
    const size_t bytes = scales_at + static_cast<size_t>((rows + scale_rows - 1) / scale_rows) * scale_bytes;
    SENKO_CUDA(cudaMemcpyAsync(stage.device.data(), stage.pinned, bytes, cudaMemcpyHostToDevice, stream_));
    uint8_t* to = tiles + ops::TileBytes(format, first, in);
    uint8_t* to_scales = scales + ops::TileScaleBytes(format, first, in);
    Put({format, rows, in, to, to_scales}, stage.device.data(), stage.device.data() + scales_at, to, to_scales);
    SENKO_CUDA(cudaEventRecord(stage.done, stream_));
    first += rows;
  }
}

// Counts faults under the last name.
void WeightUpload::Put(const ops::TiledWeight& weight, const uint8_t* data, const uint8_t* scale, uint8_t* tiles,
                       uint8_t* scales) {
  ops::TileWeight(data, scale, weight, tiles, scales, faults_.data() + names_.size() - 1, stream_);
}

void WeightUpload::SplitTiles(const std::string& name, const ops::WeightView& fn, const ops::TiledWeight& weight,
                              uint8_t* tiles) {
  names_.push_back(name);
  stored_bytes_ += static_cast<uint64_t>(fn.bytes());
  if (fn.data == nullptr) {
    FillDummyTiles(weight, tiles, nullptr, static_cast<uint32_t>(names_.size()), stream_);
    return;
  }
  Stage& stage = Next();
  const auto bytes = static_cast<size_t>(fn.bytes()), split_bytes = static_cast<size_t>(weight.out * weight.in * 2);
  const size_t split_at = (bytes + 255) / 256 * 256;
  SENKO_CHECK(split_at + split_bytes <= kStageBytes);
  std::memcpy(stage.pinned, fn.data, bytes);
  SENKO_CUDA(cudaMemcpyAsync(stage.device.data(), stage.pinned, bytes, cudaMemcpyHostToDevice, stream_));
  uint8_t* split = stage.device.data() + split_at;
  ops::MhcSplitProjection(reinterpret_cast<const float*>(stage.device.data()), weight.out / 3, weight.in,
                          reinterpret_cast<__nv_bfloat16*>(split), stream_);
  Put(weight, split, nullptr, tiles, nullptr);
  SENKO_CUDA(cudaEventRecord(stage.done, stream_));
}

void WeightUpload::Bytes(const uint8_t* data, size_t bytes, uint8_t* to) {
  stored_bytes_ += bytes;
  if (data == nullptr) return FillDummyBf16(to, bytes / 2, 1.0f, 1, stream_);
  for (size_t at = 0; at < bytes; at += kStageBytes) {
    const size_t count = std::min(bytes - at, kStageBytes);
    Stage& stage = Next();
    const int64_t parts = static_cast<int64_t>((count + kCopyBytes - 1) / kCopyBytes);
    Timed(&reading_seconds_, [&] {
      pool_.ParallelFor(parts, 1, [&](int64_t begin, int64_t end, int) {
        const size_t from = static_cast<size_t>(begin) * kCopyBytes;
        const size_t until = std::min(static_cast<size_t>(end) * kCopyBytes, count);
        std::memcpy(stage.pinned + from, data + at + from, until - from);
      });
    });
    SENKO_CUDA(cudaMemcpyAsync(to + at, stage.pinned, count, cudaMemcpyHostToDevice, stream_));
    SENKO_CUDA(cudaEventRecord(stage.done, stream_));
  }
}

void WeightUpload::Floats(const float* data, size_t count, float otherwise, float* to) {
  stored_bytes_ += count * sizeof(float);
  for (size_t at = 0; at < count; at += kStageBytes / sizeof(float)) {
    const size_t n = std::min(count - at, kStageBytes / sizeof(float));
    Stage& stage = Next();
    auto* pinned = reinterpret_cast<float*>(stage.pinned);
    if (data != nullptr) {
      std::memcpy(pinned, data + at, n * sizeof(float));
    } else {
      std::fill(pinned, pinned + n, otherwise);
    }
    SENKO_CUDA(cudaMemcpyAsync(to + at, pinned, n * sizeof(float), cudaMemcpyHostToDevice, stream_));
    SENKO_CUDA(cudaEventRecord(stage.done, stream_));
  }
}

void WeightUpload::Finish() {
  std::vector<ops::TileFaults> faults(names_.size());
  SENKO_CUDA(cudaMemcpyAsync(faults.data(), faults_.data(), faults.size() * sizeof(ops::TileFaults),
                             cudaMemcpyDeviceToHost, stream_));
  Timed(&waiting_seconds_, [&] { SENKO_CUDA(cudaStreamSynchronize(stream_)); });
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].nan_codes > 0) {
      throw Error(ErrorCode::kNumerical, names_[i] + ": " + std::to_string(faults[i].nan_codes) +
                                             " codes or scales are NaN; `senko inspect --scan` lists them");
    }
    if (faults[i].small_codes > 0) {
      throw Error(ErrorCode::kUnsupported, names_[i] + ": " + std::to_string(faults[i].small_codes) +
                                               " codes times their scales are too small for the kernels of --device "
                                               "cuda to keep every bit");
    }
    if (faults[i].large_scales > 0) {
      throw Error(ErrorCode::kUnsupported, names_[i] + ": " + std::to_string(faults[i].large_scales) +
                                               " scales are larger than the kernels of --device cuda can multiply by");
    }
  }
}

}  // namespace senko::runtime
