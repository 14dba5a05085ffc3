#include "api/fields.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "api/json_text.h"
#include "text/utf8.h"

namespace senko::api {
namespace {

constexpr size_t kMaxShownBytes = 64;  // of a name that is not one of ours

bool IsEmpty(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return true;
    case Json::value_t::boolean:
      return !value.get<bool>();
    case Json::value_t::string:
      return value.get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object:
      return value.empty();
    default:
      return false;
  }
}

// A name of the client's as it may stand in a message: as it is if it looks like one of a field's, otherwise quoted,
// what is not printable ASCII escaped, and cut. An exception's text ends at a NUL, and nobody's terminal wants the
// others.
std::string Shown(std::string_view name) {
  const std::string_view rest = name.substr(0, kMaxShownBytes);
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  if (!name.empty() && rest.size() == name.size() && std::all_of(name.begin(), name.end(), plain)) {
    return std::string(name);
  }
  std::string out = "\"";
  for (size_t at = 0; at < rest.size();) {
    const text::CodePoint c = text::DecodeUtf8(name, at);  // whole, where it begins
    at += std::max<size_t>(c.size_bytes, 1);
    if (c.value == '"' || c.value == '\\') out.push_back('\\');
    if (c.value >= 0x20 && c.value < 0x7F) {
      out.push_back(static_cast<char>(c.value));
      continue;
    }
    char digits[16];
    std::snprintf(digits, sizeof(digits), c.value > 0xFFFF ? "\\u{%x}" : "\\u%04x", static_cast<unsigned>(c.value));
    out += digits;
  }
  return out += rest.size() < name.size() ? "...\"" : "\"";
}

}  // namespace

std::optional<int64_t> AsInteger(const Json& value, int64_t low, int64_t high) {
  int64_t integer = 0;
  if (value.is_number_unsigned()) {
    const auto big = value.get<uint64_t>();
    if (big > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    integer = static_cast<int64_t>(big);
  } else if (value.is_number_integer()) {
    integer = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992;  // 2^53
    if (!(std::abs(number) <= kExact) || number != std::floor(number)) return std::nullopt;
    integer = static_cast<int64_t>(number);
  } else {
    return std::nullopt;
  }
  if (integer < low || integer > high) return std::nullopt;
  return integer;
}

std::string Indexed(std::string_view path, size_t index) {
  return std::string(path) + "[" + std::to_string(index) + "]";
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    throw RequestError(ErrorCode::kInvalidArgument, (path_.empty() ? "the body" : path_) + " must be an object", path_);
  }
}

std::string Fields::Path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

void Fields::Fail(std::string_view name, std::string_view why, ErrorCode code) const {
  const std::string path = Path(name);
  throw RequestError(code, path + " " + std::string(why), path);
}

const Json* Fields::Find(std::string_view name) {
  known_.push_back(name);
  for (const auto& [key, value] : object_.get_ref<const Json::object_t&>()) {
    if (key == name) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

std::optional<bool> Fields::Bool(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Fail(name, "must be true or false");
  return value->get<bool>();
}

std::optional<int64_t> Fields::Integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto integer = AsInteger(*value, low, high);
  if (!integer) {
    std::string why = "must be an integer";
    if (low != INT64_MIN || (value->is_number() && high == INT64_MAX)) why += " from " + std::to_string(low);
    if (high != INT64_MAX || value->is_number()) why += " to " + std::to_string(high);
    Fail(name, why);
  }
  return integer;
}

std::optional<double> Fields::Number(std::string_view name, double low, double high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= low && number <= high)) {
    std::string why = "must be a number from ";
    AppendFloat(low, &why) += " to ";
    Fail(name, AppendFloat(high, &why));
  }
  return number;
}

std::optional<std::string> Fields::String(std::string_view name, size_t max_bytes) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail(name, "must be a string");
  const std::string& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) Fail(name, "must have at most " + std::to_string(max_bytes) + " bytes");
  return text;
}

const Json::array_t* Fields::Array(std::string_view name, size_t max_items) {
  const Json* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) Fail(name, "must be a list");
  if (value->size() > max_items) Fail(name, "must have at most " + std::to_string(max_items) + " items");
  return &value->get_ref<const Json::array_t&>();
}

const Json* Fields::Object(std::string_view name) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_object()) Fail(name, "must be an object");
  return value;
}

void Fields::Accept(std::initializer_list<std::string_view> names) {
  known_.insert(known_.end(), names.begin(), names.end());
}

void Fields::Refuse(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const Json* value = Find(name);
    if (value != nullptr && !IsEmpty(*value)) {
      Fail(name, "is not supported here; leave it out", ErrorCode::kUnsupported);
    }
  }
}

void Fields::RefusePresent(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (Find(name) != nullptr) Fail(name, "is not supported here; leave it out", ErrorCode::kUnsupported);
  }
}

void Fields::Finish() const {
  for (const auto& [key, value] : object_.get_ref<const Json::object_t&>()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string path = Path(Shown(key));
    throw RequestError(ErrorCode::kInvalidArgument, path + " is not a field of this request", path);
  }
}

}  // namespace senko::api
