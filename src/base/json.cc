#include "base/json.h"

#include <set>
#include <utility>
#include <vector>

namespace senko {
namespace {

// Checks and builds in one pass. The library's own builder looks every key up among those before it, which
// takes time in the square of an object's keys; here a key is known to be new, so members are appended.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view source, const JsonLimits& limits) : source_(source), limits_(limits) {}

  Json Take() { return std::move(root_); }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t& value) override { return Put(std::move(value)); }
  bool start_object(std::size_t) override { return Enter(Json::object()); }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override { return Enter(Json::array()); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    Level& level = levels_.back();
    if (levels_.size() == 1) member_ = key;
    if (level.keys.contains(key)) Fail(ErrorCode::kCorrupt, "duplicate key \"" + key.substr(0, 200) + "\"");
    if (level.keys.size() >= limits_.max_keys) {
      Fail(ErrorCode::kResourceExhausted,
           "an object with more than " + std::to_string(limits_.max_keys) + " keys, the limit; use fewer");
    }
    level.keys.insert(key);
    level.value->get_ref<Json::object_t&>().emplace_back(std::move(key), nullptr);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    if (what.size() > 300) what = what.substr(0, 300) + "...";
    Fail(ErrorCode::kCorrupt, "invalid JSON at byte " + std::to_string(position) + ": " + what);
  }

 private:
  // An open array or object. Its address is stable: nothing is appended to a parent while a child is open.
  struct Level {
    Json* value;
    std::set<std::string> keys;
  };

  [[noreturn]] void Fail(ErrorCode code, const std::string& what) const {
    throw JsonError(code, std::string(source_) + ": " + what, member_);
  }

  Json* Place(Json value) {
    if (++values_ > limits_.max_values) {
      Fail(ErrorCode::kResourceExhausted,
           "more than " + std::to_string(limits_.max_values) + " values, the limit; use fewer");
    }
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      parent.get_ref<Json::array_t&>().push_back(std::move(value));
      return &parent.back();
    }
    Json& member = parent.get_ref<Json::object_t&>().back().second;  // of the key just seen
    member = std::move(value);
    return &member;
  }
  bool Put(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Enter(Json empty) {
    if (static_cast<int>(levels_.size()) >= limits_.max_depth) {
      Fail(ErrorCode::kCorrupt, "JSON nested deeper than " + std::to_string(limits_.max_depth));
    }
    levels_.push_back({Place(std::move(empty)), {}});
    return true;
  }
  bool Leave() {
    levels_.pop_back();
    return true;
  }

  std::string_view source_;
  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> levels_;
  std::string member_;  // of the outermost object, the last that began
  size_t values_ = 0;
};

}  // namespace

Json ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw JsonError(ErrorCode::kResourceExhausted,
                    std::string(source) + ": " + std::to_string(text.size()) + " bytes of JSON, the limit is " +
                        std::to_string(limits.max_bytes),
                    {});
  }
  // The library takes one for the end of the text, and what follows for nothing.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw JsonError(ErrorCode::kCorrupt,
                    std::string(source) + ": invalid JSON at byte " + std::to_string(nul + 1) + ": a NUL", {});
  }
  Builder builder(source, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

std::string DumpJson(const Json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::detail::error_handler_t::replace);
}

}  // namespace senko
