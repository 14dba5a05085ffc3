#include "runtime/cuda/device_probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cuda/check.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"

namespace senko::runtime {
namespace {

float ToFloat(float x) { return x; }
float ToFloat(__nv_bfloat16 x) { return numerics::Bf16ToFloat(std::bit_cast<uint16_t>(x)); }
// `x` in the type of `*to`, rounded where that is bf16.
void Set(float x, float* to) { *to = x; }
void Set(float x, __nv_bfloat16* to) { *to = std::bit_cast<__nv_bfloat16>(numerics::FloatToBf16(x)); }

// The seam's rounding of a sublayer's input; values of e4m3 times a power of two are values of bf16.
std::vector<__nv_bfloat16> Rounded(const std::vector<__nv_bfloat16>& values) {
  std::vector<__nv_bfloat16> out(values.size());
  float x[numerics::kFp8Block];
  uint8_t codes[numerics::kFp8Block], scale;
  for (size_t at = 0; at < values.size(); at += numerics::kFp8Block) {
    for (size_t i = 0; i < numerics::kFp8Block; ++i) x[i] = ToFloat(values[at + i]);
    numerics::QuantiseFp8(x, codes, &scale);
    numerics::DequantiseFp8(codes, scale, x);
    for (size_t i = 0; i < numerics::kFp8Block; ++i) Set(x[i], &out[at + i]);
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

// Whether the probe changed a value.
template <typename Value>
bool DeviceProbe::Show(int64_t layer, std::string_view point, const std::vector<int64_t>& positions, int64_t width,
                       std::vector<Value>* data) {
  std::vector<float> values;
  for (const Value v : *data) values.push_back(ToFloat(v));
  probe_.Floats(layer, point, positions.data(), static_cast<int64_t>(positions.size()), width, values.data());
  bool changed = false;
  for (size_t i = 0; i < values.size(); ++i) {
    const float before = ToFloat((*data)[i]);
    // A NaN of another payload comes back quiet: leave what was there.
    if (std::isnan(values[i]) && std::isnan(before)) continue;
    Value after;
    Set(values[i], &after);
    if (std::memcmp(&after, &(*data)[i], sizeof(after)) == 0) continue;
    (*data)[i] = after;
    changed = true;
  }
  return changed;
}

void DeviceProbe::BeginPass(const DeviceRows& rows, cudaStream_t stream) {
  stream_ = stream;
  const std::vector<int32_t> count = Read(rows.count, 1, 1, 1);
  positions_ = Read(rows.batch.positions, count[0], 1, 1);
}

template <typename Value>
void DeviceProbe::Floats(int64_t layer, std::string_view point, int64_t width, Value* data, int64_t stride) {
  if (!Wanted(layer, point)) return;
  std::vector<Value> values = Read(data, rows(), width, stride);
  if (Show(layer, point, positions_, width, &values)) Write(values, data, rows(), width, stride);
}

template <typename Value>
void DeviceProbe::Input(int64_t layer, std::string_view point, int64_t width, Value* x, Value* xq) {
  if (!Wanted(layer, point)) return;
  std::vector<Value> values = Read(x, rows(), width, width);
  if (!Show(layer, point, positions_, width, &values)) return;
  Write(values, x, rows(), width, width);
  if constexpr (std::is_same_v<Value, __nv_bfloat16>) Write(Rounded(values), xq, rows(), width, width);
}

template <typename Value>
void DeviceProbe::Slots(int64_t layer, std::string_view point, int64_t width, Value* data, int64_t num_slots) {
  if (!Wanted(layer, point)) return;
  std::vector<Value> slots = Read(data, rows(), num_slots * width, num_slots * width);
  std::vector<Value> sums(static_cast<size_t>(rows() * width));
  for (int64_t r = 0; r < rows(); ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const Value* slot = slots.data() + r * num_slots * width + i;
      float sum = ToFloat(slot[0]);
      for (int64_t s = 1; s < num_slots; ++s) sum += ToFloat(slot[s * width]);
      Set(sum, &sums[static_cast<size_t>(r * width + i)]);
    }
  }
  if (!Show(layer, point, positions_, width, &sums)) return;
  Value zero;
  Set(0, &zero);
  std::fill(slots.begin(), slots.end(), zero);
  for (int64_t r = 0; r < rows(); ++r) {
    std::copy_n(sums.begin() + r * width, width, slots.begin() + r * num_slots * width);
  }
  Write(slots, data, rows(), num_slots * width, num_slots * width);
}

template <typename Value>
void DeviceProbe::Entries(int64_t layer, std::string_view point, int64_t width, Value* data,
                          const DeviceLatents& latents) {
  const std::vector<int32_t> count = Read(latents.count, 1, 1, 1);
  std::vector<int64_t> entries;
  for (const ops::LatentRef& latent : Read(latents.latents, count[0], 1, 1)) entries.push_back(latent.entry);
  if (entries.empty() || !probe_.Wants(layer, point, entries.back())) return;
  std::vector<Value> values = Read(data, count[0], width, width);
  if (Show(layer, point, entries, width, &values)) Write(values, data, count[0], width, width);
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

template void DeviceProbe::Floats(int64_t, std::string_view, int64_t, float*, int64_t);
template void DeviceProbe::Input(int64_t, std::string_view, int64_t, float*, float*);
template void DeviceProbe::Slots(int64_t, std::string_view, int64_t, float*, int64_t);
template void DeviceProbe::Entries(int64_t, std::string_view, int64_t, float*, const DeviceLatents&);
template void DeviceProbe::Floats(int64_t, std::string_view, int64_t, __nv_bfloat16*, int64_t);
template void DeviceProbe::Input(int64_t, std::string_view, int64_t, __nv_bfloat16*, __nv_bfloat16*);
template void DeviceProbe::Slots(int64_t, std::string_view, int64_t, __nv_bfloat16*, int64_t);
template void DeviceProbe::Entries(int64_t, std::string_view, int64_t, __nv_bfloat16*, const DeviceLatents&);

}  // namespace senko::runtime
