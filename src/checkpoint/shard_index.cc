#include "checkpoint/shard_index.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/problem_list.h"
#include "checkpoint/text_file.h"

namespace senko::checkpoint {
namespace {

using Sax = nlohmann::json;

// Events instead of a tree: the released map has 96,000 keys.
class IndexReader : public nlohmann::json_sax<Sax> {
 public:
  explicit IndexReader(std::string_view source) : source_(source) {}

  ShardIndex index;
  bool has_map = false;

  bool start_object(std::size_t) override {
    NotTotal();
    if (depth_ == 1) section_ = key_;
    if (section_ == "weight_map" && depth_ == 1) has_map = true;
    return Enter();
  }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override { return NotTotal() && Enter(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool string(string_t& text) override {
    if (!InMap()) return NotTotal();
    if (text.empty() || text.size() > 255 || text[0] == '.' || text.find('/') != std::string::npos ||
        text.find('\0') != std::string::npos) {
      Fail("weight_map: tensor \"" + Printable(key_) + "\" names the file \"" + Printable(text) +
           "\"; it must be a plain file name in the same folder");
    }
    index.weight_map.emplace_back(key_, std::move(text));
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (AtTotal()) index.total_size = value;
    return NotInMap();
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (!AtTotal()) return NotInMap();
    if (!(value >= 0) || value != std::floor(value)) return NotTotal();
    // Some writers store the sum as a float; beyond 2^53 it would not be exact and says nothing.
    if (value < 9007199254740992.0) index.total_size = static_cast<uint64_t>(value);
    return true;
  }
  bool number_integer(number_integer_t) override { return NotTotal() && NotInMap(); }  // the negative ones
  bool null() override { return NotTotal() && NotInMap(); }
  bool boolean(bool) override { return NotTotal() && NotInMap(); }
  bool binary(binary_t&) override { return NotTotal() && NotInMap(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    Fail("invalid JSON at byte " + std::to_string(position) + ": " + Printable(error.what()));
  }

 private:
  bool InMap() const { return depth_ == 2 && section_ == "weight_map"; }
  bool AtTotal() const { return depth_ == 2 && section_ == "metadata" && key_ == "total_size"; }
  bool NotTotal() {
    if (AtTotal()) Fail("metadata.total_size must be a whole number of bytes, 0 or more; correct or remove it");
    return true;
  }
  bool NotInMap() {
    if (InMap()) Fail("weight_map: tensor \"" + Printable(key_) + "\" must name a file");
    return true;
  }
  bool Enter() {
    if (InMap()) Fail("weight_map: tensor \"" + Printable(key_) + "\" must name a file");
    if (++depth_ > 16) Fail("JSON nested deeper than 16");
    return true;
  }
  bool Leave() {
    if (--depth_ == 1) section_.clear();
    return true;
  }
  [[noreturn]] void Fail(const std::string& what) { throw Error(ErrorCode::kCorrupt, source_ + ": " + what); }

  std::string source_, key_, section_;
  int depth_ = 0;
};

}  // namespace

ShardIndex ParseShardIndex(std::string_view json, std::string_view source) {
  IndexReader reader(source);
  Sax::sax_parse(json.begin(), json.end(), &reader);
  if (!reader.has_map) throw Error(ErrorCode::kCorrupt, std::string(source) + ": no \"weight_map\" object");
  auto& map = reader.index.weight_map;
  std::sort(map.begin(), map.end());
  const auto twice =
      std::adjacent_find(map.begin(), map.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != map.end()) {
    throw Error(ErrorCode::kCorrupt,
                std::string(source) + ": weight_map lists tensor \"" + Printable(twice->first) + "\" twice");
  }
  return std::move(reader.index);
}

void WriteShardIndex(const std::filesystem::path& path, const ShardIndex& index) {
  std::string text =
      "{\n  \"metadata\": {\"total_size\": " + std::to_string(index.total_size.value_or(0)) + "},\n  \"weight_map\": {";
  bool first = true;
  for (const auto& [name, file] : index.weight_map) {
    text += std::string(first ? "" : ",") + "\n    " + DumpJson(Json(name)) + ": " + DumpJson(Json(file));
    first = false;
  }
  WriteTextFile(path, text + "\n  }\n}\n");
}

}  // namespace senko::checkpoint
