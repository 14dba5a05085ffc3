#include "runtime/cuda/device_probe.h"

#include <algorithm>

#include "cuda/check.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"

namespace senko::runtime {
namespace {

uint16_t* Codes(__nv_bfloat16* data) { return reinterpret_cast<uint16_t*>(data); }

// The seam's rounding of a sublayer's input; values of e4m3 times a power of two are values of bf16.
std::vector<uint16_t> Rounded(const std::vector<uint16_t>& codes) {
  std::vector<uint16_t> out(codes.size());
  float x[numerics::kFp8Block];
  uint8_t values[numerics::kFp8Block], scale;
  for (size_t at = 0; at < codes.size(); at += numerics::kFp8Block) {
    for (size_t i = 0; i < numerics::kFp8Block; ++i) x[i] = numerics::Bf16ToFloat(codes[at + i]);
    numerics::QuantiseFp8(x, values, &scale);
    numerics::DequantiseFp8(values, scale, x);
    for (size_t i = 0; i < numerics::kFp8Block; ++i) out[at + i] = numerics::FloatToBf16(x[i]);
  }
  return out;
}

}  // namespace

bool DeviceProbe::Wanted(int64_t layer, std::string_view point) const {
  return !positions_.empty() && probe_.Wants(layer, point, *std::max_element(positions_.begin(), positions_.end()));
}

template <typename T>
std::vector<T> DeviceProbe::Read(const T* data, int64_t rows, int64_t width, int64_t stride) const {
  std::vector<T> values(static_cast<size_t>(rows * width));
  if (values.empty()) return values;
  const size_t row = static_cast<size_t>(width) * sizeof(T);
  SENKO_CUDA(cudaMemcpy2DAsync(values.data(), row, data, static_cast<size_t>(stride) * sizeof(T), row,
                               static_cast<size_t>(rows), cudaMemcpyDeviceToHost, stream_));
  SENKO_CUDA(cudaStreamSynchronize(stream_));
  return values;
}

template <typename T>
void DeviceProbe::Write(const std::vector<T>& values, T* data, int64_t rows, int64_t width, int64_t stride) const {
  if (values.empty()) return;
  const size_t row = static_cast<size_t>(width) * sizeof(T);
  SENKO_CUDA(cudaMemcpy2DAsync(data, static_cast<size_t>(stride) * sizeof(T), values.data(), row, row,
                               static_cast<size_t>(rows), cudaMemcpyHostToDevice, stream_));
  SENKO_CUDA(cudaStreamSynchronize(stream_));
}

// Whether the probe changed a code.
bool DeviceProbe::Show(int64_t layer, std::string_view point, const std::vector<int64_t>& positions, int64_t width,
                       std::vector<uint16_t>* codes) {
  std::vector<float> values(codes->size());
  std::transform(codes->begin(), codes->end(), values.begin(), numerics::Bf16ToFloat);
  probe_.Floats(layer, point, positions.data(), static_cast<int64_t>(positions.size()), width, values.data());
  bool changed = false;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t code = numerics::FloatToBf16(values[i]);
    // A NaN of another payload comes back quiet: leave what was there.
    if (code == (*codes)[i] || (values[i] != values[i] && ((*codes)[i] & 0x7FFF) > 0x7F80)) continue;
    (*codes)[i] = code;
    changed = true;
  }
  return changed;
}

void DeviceProbe::BeginPass(const DeviceRows& rows, cudaStream_t stream) {
  stream_ = stream;
  const std::vector<int32_t> count = Read(rows.count, 1, 1, 1);
  positions_ = Read(rows.batch.positions, count[0], 1, 1);
}

void DeviceProbe::Floats(int64_t layer, std::string_view point, int64_t width, float* data, int64_t stride) {
  if (!Wanted(layer, point)) return;
  std::vector<float> values = Read(data, rows(), width, stride);
  probe_.Floats(layer, point, positions_.data(), rows(), width, values.data());
  Write(values, data, rows(), width, stride);
}

void DeviceProbe::Floats(int64_t layer, std::string_view point, int64_t width, __nv_bfloat16* data, int64_t stride) {
  if (!Wanted(layer, point)) return;
  std::vector<uint16_t> codes = Read(Codes(data), rows(), width, stride);
  if (Show(layer, point, positions_, width, &codes)) Write(codes, Codes(data), rows(), width, stride);
}

void DeviceProbe::Input(int64_t layer, std::string_view point, int64_t width, __nv_bfloat16* x, __nv_bfloat16* xq) {
  if (!Wanted(layer, point)) return;
  std::vector<uint16_t> codes = Read(Codes(x), rows(), width, width);
  if (!Show(layer, point, positions_, width, &codes)) return;
  Write(codes, Codes(x), rows(), width, width);
  Write(Rounded(codes), Codes(xq), rows(), width, width);
}

void DeviceProbe::Slots(int64_t layer, std::string_view point, int64_t width, __nv_bfloat16* data, int64_t num_slots) {
  if (!Wanted(layer, point)) return;
  std::vector<uint16_t> slots = Read(Codes(data), rows(), num_slots * width, num_slots * width);
  std::vector<uint16_t> sums(static_cast<size_t>(rows() * width));
  for (int64_t r = 0; r < rows(); ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const uint16_t* slot = slots.data() + r * num_slots * width + i;
      float sum = numerics::Bf16ToFloat(slot[0]);
      for (int64_t s = 1; s < num_slots; ++s) sum += numerics::Bf16ToFloat(slot[s * width]);
      sums[static_cast<size_t>(r * width + i)] = numerics::FloatToBf16(sum);
    }
  }
  if (!Show(layer, point, positions_, width, &sums)) return;
  std::fill(slots.begin(), slots.end(), uint16_t{0});
  for (int64_t r = 0; r < rows(); ++r) {
    std::copy_n(sums.begin() + r * width, width, slots.begin() + r * num_slots * width);
  }
  Write(slots, Codes(data), rows(), num_slots * width, num_slots * width);
}

void DeviceProbe::Entries(int64_t layer, std::string_view point, int64_t width, __nv_bfloat16* data,
                          const DeviceLatents& latents) {
  const std::vector<int32_t> count = Read(latents.count, 1, 1, 1);
  std::vector<int64_t> entries;
  for (const ops::LatentRef& latent : Read(latents.latents, count[0], 1, 1)) entries.push_back(latent.entry);
  if (entries.empty() || !probe_.Wants(layer, point, entries.back())) return;
  std::vector<uint16_t> codes = Read(Codes(data), count[0], width, width);
  if (Show(layer, point, entries, width, &codes)) Write(codes, Codes(data), count[0], width, width);
}

void DeviceProbe::Chosen(int64_t layer, std::string_view point, int64_t width, int32_t* data, int32_t* counts,
                         int64_t ratio, int64_t block) {
  if (!Wanted(layer, point)) return;
  std::vector<int64_t> limits;
  for (const int64_t position : positions_) limits.push_back(((position + 1) / ratio + block - 1) / block);
  std::vector<int32_t> values = Read(data, rows(), width, width), lengths = Read(counts, rows(), 1, 1);
  probe_.Ints(layer, point, positions_.data(), rows(), width, limits.data(), values.data(), lengths.data());
  Write(values, data, rows(), width, width);
  Write(lengths, counts, rows(), 1, 1);
}

void DeviceProbe::Routes(int64_t layer, int64_t topk, int64_t num_experts, int32_t* ids, float* weights) {
  if (!Wanted(layer, "route_ids")) return;
  const std::vector<int64_t> limits(positions_.size(), num_experts);
  std::vector<int32_t> values = Read(ids, rows(), topk, topk);
  probe_.Ints(layer, "route_ids", positions_.data(), rows(), topk, limits.data(), values.data(), nullptr);
  Write(values, ids, rows(), topk, topk);
  Floats(layer, "route_weights", topk, weights, topk);
}

}  // namespace senko::runtime
