// Reading one JSON object of a request, field by field, with a closed vocabulary: what nobody asked for is refused.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "base/json.h"

namespace senko::api {

// Errors of every member: RequestError kInvalidArgument naming the field by its path ("tools[0].function.name").
// A field that is null counts as absent. The object must outlive it.
class Fields {
 public:
  explicit Fields(const Json& object, std::string path = {});

  const Json* Find(std::string_view name);  // nullptr when absent
  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Integer(std::string_view name, int64_t low, int64_t high);
  // Finite and in [low, high].
  std::optional<double> Number(std::string_view name, double low, double high);
  std::optional<std::string> String(std::string_view name, size_t max_bytes = SIZE_MAX);
  const Json::array_t* Array(std::string_view name, size_t max_items = SIZE_MAX);
  const Json* Object(std::string_view name);

  // Harmless whatever they hold: they cannot change an answer.
  void Accept(std::initializer_list<std::string_view> names);
  // Known to others, and would change the answer here if they were there: refused by name (kUnsupported) unless they
  // are null, false, "", [] or {}.
  void Refuse(std::initializer_list<std::string_view> names);
  // The same for those that ask for something even when empty: only null is as good as absent.
  void RefusePresent(std::initializer_list<std::string_view> names);
  // Refuses what was not asked for.
  void Finish() const;

  std::string Path(std::string_view name) const;
  [[noreturn]] void Fail(std::string_view name, std::string_view why,
                         ErrorCode code = ErrorCode::kInvalidArgument) const;

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string_view> known_;
};

// Whether `value` is an integer in [low, high], also one written with a fraction of zero.
std::optional<int64_t> AsInteger(const Json& value, int64_t low, int64_t high);
std::string Indexed(std::string_view path, size_t index);  // "messages[3]"

}  // namespace senko::api
