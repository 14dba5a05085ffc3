#include "base/json.h"

#include <set>
#include <vector>

#include "base/error.h"

namespace senko {
namespace {

// A SAX pass that checks depth and duplicate keys before a DOM is built.
class Guard : public nlohmann::json_sax<Json> {
 public:
  Guard(std::string_view source, int max_depth) : source_(source), max_depth_(max_depth) {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      throw Error(ErrorCode::kCorrupt, std::string(source_) + ": duplicate key \"" + key.substr(0, 200) + "\"");
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    if (what.size() > 300) what = what.substr(0, 300) + "...";
    throw Error(ErrorCode::kCorrupt,
                std::string(source_) + ": invalid JSON at byte " + std::to_string(position) + ": " + what);
  }

 private:
  bool Enter() {
    if (static_cast<int>(keys_.size()) >= max_depth_) {
      throw Error(ErrorCode::kCorrupt,
                  std::string(source_) + ": JSON nested deeper than " + std::to_string(max_depth_));
    }
    keys_.emplace_back();
    return true;
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }

  std::string_view source_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Json ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw Error(ErrorCode::kResourceExhausted, std::string(source) + ": " + std::to_string(text.size()) +
                                                   " bytes of JSON, the limit is " +
                                                   std::to_string(limits.max_bytes));
  }
  Guard guard(source, limits.max_depth);
  Json::sax_parse(text.begin(), text.end(), &guard);
  return Json::parse(text.begin(), text.end());
}

std::string DumpJson(const Json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::detail::error_handler_t::replace);
}

}  // namespace senko
