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

// Indices from a file reach pages and experts: distinct, inside [0, limit), and where order is part of the contract
// ascending.
void CheckInjected(const std::string& name, int64_t position, std::span<const int32_t> values, int64_t limit,
                   bool ascending) {
  std::vector<int32_t> sorted(values.begin(), values.end());
  if (!ascending) std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] >= 0 && sorted[i] < limit && (i == 0 || sorted[i] > sorted[i - 1])) continue;
    throw Error(ErrorCode::kInvalidArgument, "--inject: " + name + " row " + std::to_string(position) + ": value " +
                                                 std::to_string(sorted[i]) + " is not one of the " +
                                                 (ascending ? "ascending " : "") + "distinct indices in [0, " +
                                                 std::to_string(limit) + ")");
  }
}

}  // namespace

DumpProbe::DumpProbe(std::filesystem::path dump, int64_t from, std::filesystem::path inject)
    : dump_(std::move(dump)), inject_(std::move(inject)), from_(from) {
  std::error_code error;
  if (!dump_.empty()) std::filesystem::create_directories(dump_, error);
  if (error) throw Error(ErrorCode::kIo, "--dump " + dump_.string() + ": cannot make the folder: " + error.message());
  if (!inject_.empty() && !std::filesystem::is_directory(inject_, error)) {
    throw Error(ErrorCode::kNotFound, "--inject " + inject_.string() + ": no such folder");
  }
}

std::string DumpProbe::Name(int64_t layer, std::string_view point) const {
  return "prompt_" + std::to_string(prompt_) + ".layer_" + std::to_string(layer) + "." + std::string(point);
}

void DumpProbe::BeginPrompt(int64_t k) {
  prompt_ = k;
  floats_.clear();
  ints_.clear();
  injected_tensors_.clear();
  used_.clear();
  injected_.reset();
  if (inject_.empty()) return;
  const std::filesystem::path path = inject_ / ("prompt_" + std::to_string(k) + ".safetensors");
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorCode::kNotFound, "--inject: there is no " + path.string() + " for prompt " + std::to_string(k));
  }
  injected_ = std::make_unique<checkpoint::SafetensorsFile>(checkpoint::SafetensorsFile::Open(path));
  for (const auto& entry : injected_->header().entries) {
    injected_tensors_.emplace(entry.name, injected_->Tensor(entry.name));
  }
}

const checkpoint::TensorRef* DumpProbe::Injected(const std::string& name, DType type, int64_t width) {
  const auto it = injected_tensors_.find(name);
  if (it == injected_tensors_.end()) return nullptr;
  const checkpoint::TensorRef& tensor = it->second;
  used_.insert(name);
  int64_t row = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) row *= tensor.shape[i];
  if (tensor.dtype != type || tensor.shape.empty() || row != width) {
    throw Error(ErrorCode::kInvalidArgument, "--inject: " + name + " must be " + std::string(DTypeName(type)) +
                                                 " [T, " + std::to_string(width) + "]");
  }
  return &tensor;
}

int64_t DumpProbe::From(std::string_view point) const { return point == "latent" || point == "key" ? 0 : from_; }

bool DumpProbe::Wants(int64_t layer, std::string_view point, int64_t last) const {
  return (!dump_.empty() && last >= From(point)) || injected_tensors_.contains(Name(layer, point));
}

template <typename T>
void DumpProbe::Record(std::map<std::string, Series<T>>& all, const std::string& name, int64_t from,
                       const int64_t* positions, int64_t rows, int64_t width, const T* data) {
  Series<T>& series = all[name];
  series.width = width;
  for (int64_t r = 0; r < rows; ++r) {
    if (positions[r] < from) continue;
    if (!series.positions.empty() && positions[r] <= series.positions.back()) continue;  // shown before
    series.positions.push_back(positions[r]);
    series.values.insert(series.values.end(), data + r * width, data + (r + 1) * width);
  }
}

void DumpProbe::Floats(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
                       float* data) {
  const std::string name = Name(layer, point);
  if (const auto* tensor = Injected(name, DType::kF32, width)) {
    if (!dump_.empty()) Record(floats_, name + ".computed", From(point), positions, rows, width, data);
    for (int64_t r = 0; r < rows; ++r) CopyRow(*tensor, positions[r], width, data + r * width);
  }
  if (!dump_.empty()) Record(floats_, name, From(point), positions, rows, width, data);
}

void DumpProbe::Ints(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
                     const int64_t* limits, int32_t* data, int32_t* counts) {
  const std::string name = Name(layer, point);
  if (const auto* tensor = Injected(name, DType::kI32, width)) {
    if (point == "route_ids" && !injected_tensors_.contains(Name(layer, "route_weights"))) {
      throw Error(ErrorCode::kInvalidArgument, "--inject: " + name + " needs " + Name(layer, "route_weights") +
                                                   " beside it: other experts have other weights");
    }
    for (int64_t r = 0; r < rows; ++r) {
      int32_t* row = data + r * width;
      if (!CopyRow(*tensor, positions[r], width, row)) continue;
      const int64_t count = counts == nullptr ? width : std::find(row, row + width, -1) - row;
      CheckInjected(name, positions[r], std::span<const int32_t>(row, static_cast<size_t>(count)), limits[r],
                    counts != nullptr);
      if (counts != nullptr) counts[r] = static_cast<int32_t>(count);
    }
  }
  if (dump_.empty()) return;
  if (counts != nullptr) {
    for (int64_t r = 0; r < rows; ++r) std::fill(data + r * width + counts[r], data + (r + 1) * width, -1);
  }
  Record(ints_, name, From(point), positions, rows, width, data);
}

void DumpProbe::EndPrompt() {
  for (const auto& entry : injected_tensors_) {
    if (used_.contains(entry.first)) continue;
    throw Error(ErrorCode::kInvalidArgument, "--inject: " + entry.first + " names no point that ran");
  }
  if (dump_.empty()) return;
  std::vector<checkpoint::TensorSpec> specs;
  auto declare = [&](const auto& all, DType type) {
    for (const auto& [name, series] : all) {
      const int64_t rows = static_cast<int64_t>(series.positions.size());
      specs.push_back({name, type, {rows, series.width}});
      specs.push_back({name + ".positions", DType::kI64, {rows}});
    }
  };
  declare(floats_, DType::kF32);
  declare(ints_, DType::kI32);
  checkpoint::SafetensorsWriter writer(dump_ / ("prompt_" + std::to_string(prompt_) + ".safetensors"), specs);
  size_t index = 0;
  auto write = [&]<typename T>(const std::map<std::string, Series<T>>& all) {
    for (const auto& entry : all) {
      writer.WriteAll(index++, std::span<const T>(entry.second.values));
      writer.WriteAll(index++, std::span<const int64_t>(entry.second.positions));
    }
  };
  write(floats_);
  write(ints_);
  writer.Finish();
}

}  // namespace senko::cli
