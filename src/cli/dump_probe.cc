#include "cli/dump_probe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace senko::cli {
namespace {

// Row `position` of an injected tensor [T, width], or null past its end.
template <typename T>
bool CopyRow(const checkpoint::TensorRef& tensor, int64_t position, int64_t width, T* out) {
  if (position >= tensor.shape[0]) return false;
  const size_t bytes = static_cast<size_t>(width) * sizeof(T);
  std::memcpy(out, tensor.bytes.data() + static_cast<size_t>(position) * bytes, bytes);
  return true;
}

}  // namespace

DumpProbe::DumpProbe(std::filesystem::path dump, std::filesystem::path inject)
    : dump_(std::move(dump)), inject_(std::move(inject)) {
  if (!dump_.empty()) std::filesystem::create_directories(dump_);
}

std::string DumpProbe::Name(int64_t layer, std::string_view point) const {
  return "prompt_" + std::to_string(prompt_) + ".layer_" + std::to_string(layer) + "." + std::string(point);
}

void DumpProbe::BeginPrompt(int64_t k) {
  prompt_ = k;
  floats_.clear();
  ints_.clear();
  positions_.clear();
  injected_tensors_.clear();
  injected_.reset();
  if (inject_.empty()) return;
  const std::filesystem::path path = inject_ / ("prompt_" + std::to_string(k) + ".safetensors");
  if (!std::filesystem::exists(path)) return;
  injected_ = std::make_unique<checkpoint::SafetensorsFile>(checkpoint::SafetensorsFile::Open(path));
  for (const auto& entry : injected_->header().entries) {
    injected_tensors_.emplace(entry.name, injected_->Tensor(entry.name));
  }
}

const checkpoint::TensorRef* DumpProbe::Injected(const std::string& name, DType type, int64_t width) {
  const auto it = injected_tensors_.find(name);
  if (it == injected_tensors_.end()) return nullptr;
  const checkpoint::TensorRef& tensor = it->second;
  int64_t row = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) row *= tensor.shape[i];
  if (tensor.dtype != type || tensor.shape.empty() || row != width) {
    throw Error(ErrorCode::kInvalidArgument, "--inject: " + name + " must be " + std::string(DTypeName(type)) + " [T, " +
                                                 std::to_string(width) + "]");
  }
  return &tensor;
}

void DumpProbe::Record(const std::string& name, int64_t width, const float* data, int64_t rows) {
  Series<float>& series = floats_[name];
  series.width = width;
  series.values.insert(series.values.end(), data, data + rows * width);
}

void DumpProbe::Floats(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
                       float* data) {
  const std::string name = Name(layer, point);
  if (const auto* tensor = Injected(name, DType::kF32, width)) {
    if (!dump_.empty()) Record(name + ".computed", width, data, rows);
    for (int64_t r = 0; r < rows; ++r) CopyRow(*tensor, positions[r], width, data + r * width);
  }
  if (dump_.empty()) return;
  Record(name, width, data, rows);
  positions_[name].insert(positions_[name].end(), positions, positions + rows);
}

void DumpProbe::Ints(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
                     int32_t* data, int32_t* counts) {
  const std::string name = Name(layer, point);
  if (const auto* tensor = Injected(name, DType::kI32, width)) {
    for (int64_t r = 0; r < rows; ++r) {
      if (!CopyRow(*tensor, positions[r], width, data + r * width)) continue;
      if (counts == nullptr) continue;
      counts[r] = static_cast<int32_t>(std::find(data + r * width, data + (r + 1) * width, -1) - (data + r * width));
    }
  }
  if (dump_.empty()) return;
  Series<int32_t>& series = ints_[name];
  series.width = width;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t valid = counts == nullptr ? width : counts[r];
    series.values.insert(series.values.end(), data + r * width, data + r * width + valid);
    series.values.insert(series.values.end(), static_cast<size_t>(width - valid), -1);
  }
  positions_[name].insert(positions_[name].end(), positions, positions + rows);
}

void DumpProbe::EndPrompt() {
  if (dump_.empty()) return;
  std::vector<checkpoint::TensorSpec> specs;
  for (const auto& [name, s] : floats_) {
    specs.push_back({name, DType::kF32, {static_cast<int64_t>(s.values.size()) / s.width, s.width}});
  }
  for (const auto& [name, s] : ints_) {
    specs.push_back({name, DType::kI32, {static_cast<int64_t>(s.values.size()) / s.width, s.width}});
  }
  for (const auto& [name, p] : positions_) {
    specs.push_back({name + ".positions", DType::kI64, {static_cast<int64_t>(p.size())}});
  }
  checkpoint::SafetensorsWriter writer(dump_ / ("prompt_" + std::to_string(prompt_) + ".safetensors"), specs);
  size_t index = 0;
  for (const auto& entry : floats_) writer.WriteAll(index++, std::span<const float>(entry.second.values));
  for (const auto& entry : ints_) writer.WriteAll(index++, std::span<const int32_t>(entry.second.values));
  for (const auto& entry : positions_) writer.WriteAll(index++, std::span<const int64_t>(entry.second));
  writer.Finish();
}

}  // namespace senko::cli
