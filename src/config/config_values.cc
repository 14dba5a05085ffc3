#include "config/config_values.h"

#include <cmath>
#include <limits>
#include <optional>

namespace senko::config {
namespace {

constexpr size_t kMaxViolations = 64;

std::string Shown(const Json& json) {
  std::string text = json.is_structured() ? std::string(json.type_name()) : DumpJson(json);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

std::string ShownName(const std::string& name) { return name.size() > 80 ? name.substr(0, 80) + "..." : name; }

std::optional<int64_t> AsInt(const Json& json) {
  if (json.is_number_unsigned()) {
    const uint64_t value = json.get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(value);
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  if (!json.is_number_float()) return std::nullopt;
  const double value = json.get<double>();  // "10000.0" is an integer to the tools that write these files
  if (!(std::abs(value) < 9007199254740992.0) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

}  // namespace

ConfigValues::ConfigValues(const Json& root) {
  if (!root.is_object()) {
    Violation("the file must hold a JSON object, not " + std::string(root.type_name()));
    return;
  }
  Walk(root, Section::kTop, "");
}

void ConfigValues::Walk(const Json& object, Section section, const std::string& path) {
  for (const auto& [key, json] : object.items()) {
    const std::string name = path + key;
    const KeyMeaning meaning = LookUpKey(section, key);
    switch (meaning.kind) {
      case KeyMeaning::kIgnored:
        break;
      case KeyMeaning::kUnknown:
        unsupported_ = true;
        Violation(ShownName(name) +
                  ": unknown key; it may change what the model computes, so remove it if it does not");
        break;
      case KeyMeaning::kSection:
        if (json.is_null()) break;
        if (!json.is_object()) {
          Violation(ShownName(name) + ": must be an object, not " + Shown(json));
        } else {
          Walk(json, meaning.section,
               name + ".");  // sections nest at most twice: top, text_config, rope_scaling
        }
        break;
      case KeyMeaning::kValue: {
        const auto [it, inserted] = values_.try_emplace(std::string(meaning.canonical), Value{name, &json});
        if (!inserted && *it->second.json != json) {
          Violation(ShownName(name) + " = " + Shown(json) + " contradicts " + it->second.name + " = " +
                    Shown(*it->second.json));
        }
        break;
      }
    }
  }
}

void ConfigValues::Violation(const std::string& message) {
  if (violations_.size() < kMaxViolations) violations_.push_back(message);
  if (violations_.size() == kMaxViolations) violations_.push_back("further violations are not listed");
}

const ConfigValues::Value* ConfigValues::Find(std::string_view canonical) {
  const auto it = values_.find(canonical);
  if (it != values_.end()) return &it->second;
  std::string name(canonical.substr(canonical.find('.') + 1));
  if (canonical.starts_with("rope.")) name = "rope_scaling." + name;
  if (canonical.starts_with("vision.")) name = "vision_config." + name;
  Violation(name + ": missing");
  return nullptr;
}

bool ConfigValues::ReadInt(const Value& value, const Json& json, int64_t low, int64_t high, int64_t* out) {
  const std::optional<int64_t> number = AsInt(json);
  if (!number || *number < low || *number > high) {
    Violation(value.name + " = " + Shown(json) + ": must be an integer from " + std::to_string(low) + " to " +
              std::to_string(high));
    return false;
  }
  *out = *number;
  return true;
}

int64_t ConfigValues::Int(std::string_view canonical, int64_t low, int64_t high) {
  int64_t number = 0;
  if (const Value* value = Find(canonical)) ReadInt(*value, *value->json, low, high, &number);
  return number;
}

int64_t ConfigValues::IntOr(std::string_view canonical, int64_t fallback, int64_t low, int64_t high) {
  const auto it = values_.find(canonical);
  if (it == values_.end() || it->second.json->is_null()) return fallback;
  return Int(canonical, low, high);
}

double ConfigValues::Real(std::string_view canonical, double low, double high) {
  const Value* value = Find(canonical);
  if (value == nullptr) return 0;
  if (value->json->is_number()) {
    const double number = value->json->get<double>();
    if (number >= low && number <= high) return number;  // false for NaN
  }
  Violation(value->name + " = " + Shown(*value->json) + ": must be a number from " + Short(low) + " to " + Short(high));
  return 0;
}

double ConfigValues::RealOr(std::string_view canonical, double fallback, double low, double high) {
  const auto it = values_.find(canonical);
  if (it == values_.end() || it->second.json->is_null()) return fallback;
  return Real(canonical, low, high);
}

bool ConfigValues::Bool(std::string_view canonical) {
  const Value* value = Find(canonical);
  if (value == nullptr) return false;
  if (value->json->is_boolean()) return value->json->get<bool>();
  Violation(value->name + " = " + Shown(*value->json) + ": must be true or false");
  return false;
}

bool ConfigValues::BoolOr(std::string_view canonical, bool fallback) {
  return Has(canonical) ? Bool(canonical) : fallback;
}

std::vector<int64_t> ConfigValues::Ints(std::string_view canonical, int64_t low, int64_t high, size_t max_count) {
  std::vector<int64_t> numbers;
  const Value* value = Find(canonical);
  if (value == nullptr) return numbers;
  if (!value->json->is_array() || value->json->size() > max_count) {
    Violation(value->name + ": must be a list of at most " + std::to_string(max_count) + " integers");
    return numbers;
  }
  for (const Json& element : *value->json) {
    int64_t number = 0;
    if (!ReadInt(*value, element, low, high, &number)) return {};
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<int64_t> ConfigValues::IntsOr(std::string_view canonical, int64_t low, int64_t high, size_t max_count) {
  const auto it = values_.find(canonical);
  if (it == values_.end() || it->second.json->is_null()) return {};
  return Ints(canonical, low, high, max_count);
}

void ConfigValues::Require(std::string_view canonical, std::initializer_list<Json> allowed) {
  const auto it = values_.find(canonical);
  if (it == values_.end()) return;
  std::string list;
  for (const Json& value : allowed) {
    if (*it->second.json == value) return;
    list += (list.empty() ? "" : " or ") + DumpJson(value);
  }
  unsupported_ = true;
  Violation(it->second.name + " = " + Shown(*it->second.json) + ": only " + list + " is supported");
}

}  // namespace senko::config
