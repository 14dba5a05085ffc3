#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/text_file.h"

namespace senko::checkpoint {
namespace {

[[noreturn]] void ThrowWriteError(const std::filesystem::path& path, const char* verb, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
              path.string() + ": cannot " + verb + ": " + std::strerror(error));
}

void WriteFully(int descriptor, const std::filesystem::path& path, const std::byte* data, size_t size,
                uint64_t offset) {
  while (size != 0) {
    const ssize_t put = ::pwrite(descriptor, data, size, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) ThrowWriteError(path, "write", errno);
    data += put;
    size -= static_cast<size_t>(put);
    offset += static_cast<uint64_t>(put);
  }
}

std::string HeaderText(const std::vector<TensorSpec>& specs, const std::vector<size_t>& order,
                       const std::vector<uint64_t>& sizes, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    Json object = Json::object();
    for (const auto& [key, value] : metadata) object[key] = value;
    text += "\"__metadata__\":" + DumpJson(object);
  }
  uint64_t position = 0;
  for (size_t i : order) {
    if (text.size() > 1) text += ",";
    text += DumpJson(Json(specs[i].name)) + ":{\"dtype\":\"" + std::string(DTypeName(specs[i].dtype)) + "\",\"shape\":";
    text += ShapeText(specs[i].shape) + ",\"data_offsets\":[" + std::to_string(position) + "," +
            std::to_string(position + sizes[i]) + "]}";
    position += sizes[i];
  }
  text += "}";
  return text.append((64 - (text.size() + 8) % 64) % 64, ' ');
}

}  // namespace

SafetensorsFile SafetensorsFile::Open(const std::filesystem::path& path, ProblemList* problems) {
  SafetensorsFile file;
  file.mapping_ = MappedFile::Open(path);
  file.header_ = ParseSafetensorsHeader(file.mapping_.bytes(), path.string(), problems);
  return file;
}

SafetensorsFile SafetensorsFile::Open(const std::filesystem::path& path) {
  ProblemList problems;
  SafetensorsFile file = Open(path, &problems);
  problems.ThrowIfAny(ErrorCode::kCorrupt, path.string(), "not a sound safetensors file");
  return file;
}

std::span<const std::byte> SafetensorsFile::Bytes(const HeaderEntry& entry) const {
  const std::span<const std::byte> data = mapping_.bytes().subspan(header_.data_offset);
  if (entry.end > data.size()) return {};
  return data.subspan(entry.begin, entry.end - entry.begin);
}

TensorRef SafetensorsFile::Tensor(std::string_view name) const {
  for (const HeaderEntry& entry : header_.entries) {
    if (entry.name == name) return {entry.name, entry.dtype, entry.shape, Bytes(entry), 0};
  }
  throw Error(ErrorCode::kNotFound, mapping_.path().string() + ": no tensor \"" + Printable(name) + "\"");
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), partial_(path.string() + ".partial"), offsets_(specs.size()), sizes_(specs.size()) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t bytes = TensorBytes(specs[i].dtype, specs[i].shape);
    SENKO_CHECK(bytes >= 0);
    sizes_[i] = static_cast<uint64_t>(bytes);
    names.push_back(specs[i].name);
  }
  std::sort(names.begin(), names.end());
  SENKO_CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return SizeOf(specs[a].dtype) > SizeOf(specs[b].dtype); });
  const std::string text = HeaderText(specs, order, sizes_, metadata);
  if (text.size() > kMaxHeaderBytes) {
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": too many tensors for one file; write smaller shards");
  }
  uint64_t position = 8 + text.size();
  for (size_t i : order) {
    offsets_[i] = position;
    position += sizes_[i];
    data_bytes_ += sizes_[i];
  }
  CheckReplaceable(path_);
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) ThrowWriteError(partial_, "create", errno);
  try {
    if (::ftruncate(descriptor_, static_cast<off_t>(position)) != 0) ThrowWriteError(partial_, "resize", errno);
    const uint64_t length = text.size();
    WriteFully(descriptor_, partial_, reinterpret_cast<const std::byte*>(&length), 8, 0);
    WriteFully(descriptor_, partial_, reinterpret_cast<const std::byte*>(text.data()), text.size(), 8);
  } catch (...) {
    ::close(descriptor_);
    ::unlink(partial_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void SafetensorsWriter::Write(size_t index, uint64_t offset, std::span<const std::byte> bytes) {
  SENKO_CHECK(index < sizes_.size() && offset <= sizes_[index] && bytes.size() <= sizes_[index] - offset);
  WriteFully(descriptor_, partial_, bytes.data(), bytes.size(), offsets_[index] + offset);
  written_ += bytes.size();
}

void SafetensorsWriter::LeaveZero(size_t index) { written_ += sizes_[index]; }

void SafetensorsWriter::Finish() {
  SENKO_CHECK(written_ == data_bytes_ && descriptor_ >= 0);
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    ThrowWriteError(partial_, "close", error);
  }
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    ThrowWriteError(path_, "rename into place", error);
  }
}

}  // namespace senko::checkpoint
