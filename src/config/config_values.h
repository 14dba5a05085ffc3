// Typed, range-checked access to the values of a configuration file. Violations are collected, never thrown
// one by one, so that one message can list them all.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/config_keys.h"

namespace senko::config {

class ConfigValues {
 public:
  // Walks `root` and its known sections. Unknown keys and settings given twice become violations.
  explicit ConfigValues(const Json& root);

  bool Has(std::string_view canonical) const { return values_.contains(canonical); }

  // The value, or 0 with a violation when it is missing, of another type or outside [low, high].
  int64_t Int(std::string_view canonical, int64_t low, int64_t high);
  double Real(std::string_view canonical, double low, double high);
  bool Bool(std::string_view canonical);
  std::vector<int64_t> Ints(std::string_view canonical, int64_t low, int64_t high, size_t max_count);
  // The same, but `fallback` when the key is absent or null.
  int64_t IntOr(std::string_view canonical, int64_t fallback, int64_t low, int64_t high);
  double RealOr(std::string_view canonical, double fallback, double low, double high);
  bool BoolOr(std::string_view canonical, bool fallback);
  std::vector<int64_t> IntsOr(std::string_view canonical, int64_t low, int64_t high, size_t max_count);

  // When present, the value must be one of `allowed`: Senko computes nothing else.
  void Require(std::string_view canonical, std::initializer_list<Json> allowed);

  void Violation(const std::string& message);
  const std::vector<std::string>& violations() const { return violations_; }
  // At least one violation is a value that is well-formed but that nothing here computes.
  bool unsupported() const { return unsupported_; }

 private:
  struct Value {
    std::string name;  // as the file spells it: "text_config.hidden_size"
    const Json* json = nullptr;
  };

  void Walk(const Json& object, Section section, const std::string& path);
  const Value* Find(std::string_view canonical);
  bool ReadInt(const Value& value, const Json& json, int64_t low, int64_t high, int64_t* out);

  std::map<std::string, Value, std::less<>> values_;
  std::vector<std::string> violations_;
  bool unsupported_ = false;
};

}  // namespace senko::config
