#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace senko::checkpoint {
namespace {

using Sax = nlohmann::json;
constexpr size_t kMaxRank = 8;
constexpr char kBadTensors[] = "broken tensors";

// Reads the header as events: no tree is built, so memory stays proportional to the tensors and no key search
// is quadratic. Depth is limited by the states, not by the stack.
class HeaderReader : public nlohmann::json_sax<Sax> {
 public:
  HeaderReader(std::string_view source, ProblemList* problems) : source_(source), problems_(problems) {}

  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) return Go(State::kNames);
    if (state_ != State::kNames) Fail("an object where none belongs");
    if (key_ == "__metadata__") return Go(State::kMetadata);
    entry_ = HeaderEntry{};
    entry_.name = key_;
    type_name_.clear();
    has_type_ = has_shape_ = has_offsets_ = false;
    return Go(State::kTensor);
  }
  bool end_object() override {
    if (state_ == State::kNames) return Go(State::kDone);
    if (state_ == State::kTensor) FinishTensor();
    return Go(State::kNames);
  }
  bool start_array(std::size_t) override {
    if (state_ != State::kTensor) Fail("a list where none belongs");
    numbers_.clear();
    if (key_ == "shape") return Go(State::kShape);
    if (key_ == "data_offsets") return Go(State::kOffsets);
    Fail("unknown field \"" + Printable(key_) + "\"");
  }
  bool end_array() override {
    if (state_ == State::kShape ? has_shape_ : has_offsets_) Fail("\"" + key_ + "\" stands twice");
    if (state_ == State::kShape) {
      has_shape_ = true;
      for (uint64_t n : numbers_) entry_.shape.push_back(static_cast<int64_t>(n));
    } else {
      has_offsets_ = numbers_.size() == 2;
      if (!has_offsets_) Fail("data_offsets must hold two numbers");
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return Go(State::kTensor);
  }
  bool key(string_t& name) override {
    if (state_ == State::kNames && !names_.insert(name).second) {
      Fail("the name \"" + Printable(name) + "\" stands twice");
    }
    key_ = std::move(name);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) Fail("a number where none belongs");
    if (value > uint64_t{1} << 62) Fail("the number " + std::to_string(value) + " is out of range");
    if (numbers_.size() >= kMaxRank) Fail("more than " + std::to_string(kMaxRank) + " numbers in a list");
    numbers_.push_back(value);
    return true;
  }
  bool string(string_t& text) override {
    if (state_ == State::kMetadata) {
      header.metadata.emplace_back(key_, std::move(text));
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") Fail("a string where none belongs");
    if (has_type_) Fail("\"dtype\" stands twice");
    has_type_ = true;
    type_name_ = std::move(text);
    return true;
  }
  bool number_integer(number_integer_t value) override { Fail("the negative number " + std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { Fail("the number " + Printable(text)); }
  bool null() override { Fail("null"); }
  bool boolean(bool) override { Fail("true or false"); }
  bool binary(binary_t&) override { Fail("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    throw Error(ErrorCode::kCorrupt, source_ + ": invalid JSON in the safetensors header at byte " +
                                         std::to_string(8 + position) + ": " + Printable(what));
  }

  bool done() const { return state_ == State::kDone; }

 private:
  enum class State { kStart, kNames, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool Go(State state) {
    state_ = state;
    return true;
  }

  [[noreturn]] void Fail(const std::string& what) {
    const bool inside = state_ == State::kTensor || state_ == State::kShape || state_ == State::kOffsets;
    const std::string& owner = inside ? entry_.name : key_;
    throw Error(ErrorCode::kCorrupt, source_ + ": safetensors header: tensor \"" + Printable(owner) + "\": " + what);
  }

  void Bad(const std::string& what) {
    problems_->Add(kBadTensors, source_ + ": " + Printable(entry_.name) + ": " + what);
  }

  void FinishTensor() {
    if (!has_type_ || !has_shape_ || !has_offsets_) return Bad("dtype, shape or data_offsets is missing");
    const auto type = DTypeFromName(type_name_);
    if (!type) return Bad("dtype \"" + Printable(type_name_) + "\" is not one Senko reads");
    entry_.dtype = *type;
    const int64_t bytes = TensorBytes(*type, entry_.shape);
    if (bytes < 0) return Bad("shape " + ShapeText(entry_.shape) + " is too large");
    if (entry_.begin > entry_.end || entry_.end - entry_.begin != static_cast<uint64_t>(bytes)) {
      return Bad("data_offsets [" + std::to_string(entry_.begin) + ", " + std::to_string(entry_.end) +
                 "] do not span the " + std::to_string(bytes) + " bytes of " + type_name_ + " " +
                 ShapeText(entry_.shape));
    }
    header.entries.push_back(std::move(entry_));
  }

  std::string source_;
  ProblemList* problems_;
  State state_ = State::kStart;
  std::string key_;
  HeaderEntry entry_;
  std::string type_name_;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<uint64_t> numbers_;
  std::unordered_set<std::string> names_;
};

// Sorted by position, tensors must tile the data section: no overlap, no hole, no trailing bytes.
void CheckTiling(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& source,
                 ProblemList* problems) {
  uint64_t position = 0;
  const HeaderEntry* before = nullptr;
  for (const HeaderEntry& entry : header.entries) {
    const std::string at = source + ": " + Printable(entry.name) + ": ";
    const auto byte = [&](uint64_t offset) { return std::to_string(header.data_offset + offset); };
    if (entry.end > data_bytes) {
      problems->Add("truncated", at + "ends at byte " + byte(entry.end) + ", the file has " + byte(data_bytes));
    }
    if (entry.begin < position) {
      problems->Add("overlapping tensors", at + "begins at byte " + byte(entry.begin) + ", inside " +
                                               (before != nullptr ? Printable(before->name) : std::string("?")));
    } else if (entry.begin > position) {
      problems->Add("holes", at + "begins at byte " + byte(entry.begin) + ", but the tensors before it end at byte " +
                                 byte(position));
    }
    if (entry.end >= position) {
      position = entry.end;
      before = &entry;
    }
  }
  if (position < data_bytes) {
    problems->Add("trailing bytes", source + ": " + std::to_string(data_bytes - position) +
                                        " bytes after the last tensor, from byte " +
                                        std::to_string(header.data_offset + position));
  }
}

}  // namespace

int64_t TensorBytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return -1;
  }
  return bytes;
}

SafetensorsHeader ParseSafetensorsHeader(std::span<const std::byte> file, std::string_view source,
                                         ProblemList* problems) {
  const std::string name(source);
  if (file.size() < 8) {
    throw Error(ErrorCode::kCorrupt, name + ": " + std::to_string(file.size()) +
                                         " bytes; a safetensors file begins with 8 bytes of header length");
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    throw Error(ErrorCode::kCorrupt, name + ": header length " + std::to_string(length) + " at byte 0 exceeds the " +
                                         (length > kMaxHeaderBytes ? "limit of " + std::to_string(kMaxHeaderBytes)
                                                                   : "file's " + std::to_string(file.size())) +
                                         " bytes; the file is truncated or not safetensors");
  }
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + 8, length);
  HeaderReader reader(source, problems);
  Sax::sax_parse(json.begin(), json.end(), &reader);
  if (!reader.done()) throw Error(ErrorCode::kCorrupt, name + ": safetensors header at byte 8 is not a JSON object");
  reader.header.data_offset = 8 + length;
  std::sort(reader.header.entries.begin(), reader.header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  // With a tensor left out its bytes would be reported again as a hole.
  if (problems->count(kBadTensors) == 0) CheckTiling(reader.header, file.size() - 8 - length, name, problems);
  return std::move(reader.header);
}

}  // namespace senko::checkpoint
