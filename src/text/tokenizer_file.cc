#include "text/tokenizer_file.h"

#include <initializer_list>

#include "base/error.h"
#include "text/tokenizer_json.h"

namespace senko::text {
namespace {

// Checks one file's fields; every message starts with the file and the field's path.
class Checker {
 public:
  explicit Checker(std::string_view source) : source_(source) {}

  [[noreturn]] void Refuse(const std::string& field, const std::string& why) const {
    throw Error(ErrorCode::kUnsupported, std::string(source_) + ": " + field + ": " + why);
  }
  void Keys(const Json& object, const std::string& field, std::initializer_list<const char*> known) const {
    if (!object.is_object()) Refuse(field, "must be an object");
    for (const auto& [key, value] : object.items()) {
      bool found = false;
      for (const char* name : known) found |= key == name;
      if (!found) Refuse(field + "." + key.substr(0, 200), "is not a field this program knows");
    }
  }
  bool Bool(const Json& object, const std::string& field, const char* key, bool absent) const {
    if (!object.contains(key)) return absent;
    if (!object[key].is_boolean()) Refuse(field + "." + key, "must be true or false");
    return object[key].get<bool>();
  }
  std::string String(const Json& object, const std::string& field, const char* key) const {
    if (!object.contains(key) || !object[key].is_string()) Refuse(field + "." + key, "must be a string");
    return object[key].get<std::string>();
  }
  void Type(const Json& object, const std::string& field, const char* type) const {
    if (!object.is_object()) Refuse(field, std::string("must be a ") + type);
    const std::string found = String(object, field, "type");
    if (found != type) Refuse(field + ".type", "is " + found.substr(0, 80) + "; only " + type + " is understood");
  }
  // null, or absent, or one of the values that mean nothing happens.
  void Off(const Json& object, const std::string& field, const char* key, std::initializer_list<Json> off) const {
    if (!object.contains(key) || object[key].is_null()) return;
    for (const Json& value : off) {
      if (object[key] == value) return;
    }
    Refuse(field.empty() ? key : field + "." + key, "is set; only a file without it is understood");
  }

 private:
  std::string_view source_;
};

void ReadNormalizer(const Checker& check, const Json& root) {
  if (!root.contains("normalizer") || root["normalizer"].is_null()) return;
  const Json& normalizer = root["normalizer"];
  check.Type(normalizer, "normalizer", "Sequence");
  check.Keys(normalizer, "normalizer", {"type", "normalizers"});
  if (!normalizer.contains("normalizers") || normalizer["normalizers"] != Json::array()) {
    check.Refuse("normalizer.normalizers", "must be an empty list: this program does not normalise text");
  }
}

void ReadByteLevel(const Checker& check, const Json& object, const std::string& field, bool is_pre_tokenizer) {
  check.Type(object, field, "ByteLevel");
  check.Keys(object, field, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  check.Bool(object, field, "trim_offsets", true);
  const bool prefix = check.Bool(object, field, "add_prefix_space", true);
  const bool regex = check.Bool(object, field, "use_regex", true);
  if (is_pre_tokenizer && prefix) check.Refuse(field + ".add_prefix_space", "must be false");
  if (is_pre_tokenizer && regex) check.Refuse(field + ".use_regex", "must be false");
}

std::string ReadSplit(const Checker& check, const Json& object, const std::string& field) {
  check.Keys(object, field, {"type", "pattern", "behavior", "invert"});
  if (check.String(object, field, "behavior") != "Isolated") check.Refuse(field + ".behavior", "must be \"Isolated\"");
  if (check.Bool(object, field, "invert", false)) check.Refuse(field + ".invert", "must be false");
  if (!object.contains("pattern")) check.Refuse(field + ".pattern", "is missing");
  check.Keys(object["pattern"], field + ".pattern", {"Regex"});
  return check.String(object["pattern"], field + ".pattern", "Regex");
}

void ReadPreTokenizer(const Checker& check, const Json& root, TokenizerFile* file) {
  const std::string name = "pre_tokenizer";
  if (!root.contains(name)) check.Refuse(name, "is missing");
  const Json& object = root[name];
  if (object.is_object() && object.contains("type") && object["type"] == "ByteLevel") {
    return ReadByteLevel(check, object, name, true);
  }
  check.Type(object, name, "Sequence");
  check.Keys(object, name, {"type", "pretokenizers"});
  const Json empty = Json::array();
  const Json& list = object.contains("pretokenizers") ? object["pretokenizers"] : empty;
  if (!list.is_array() || list.empty())
    check.Refuse(name + ".pretokenizers", "must be a list that ends with ByteLevel");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = name + ".pretokenizers[" + std::to_string(i) + "]";
    if (i + 1 == list.size()) {
      ReadByteLevel(check, list[i], field, true);
    } else {
      check.Type(list[i], field, "Split");
      file->split_patterns.push_back(ReadSplit(check, list[i], field));
    }
  }
}

// ByteLevel, or a Sequence that first removes literal strings: a file whose ids share bytes spells them apart
// with such marks.
void ReadDecoder(const Checker& check, const Json& root, TokenizerFile* file) {
  const std::string name = "decoder";
  if (!root.contains(name)) check.Refuse(name, "is missing; it must be ByteLevel");
  const Json& object = root[name];
  if (!object.is_object() || !object.contains("type") || object["type"] != "Sequence") {
    return ReadByteLevel(check, object, name, false);
  }
  check.Keys(object, name, {"type", "decoders"});
  const Json empty = Json::array();
  const Json& list = object.contains("decoders") ? object["decoders"] : empty;
  if (!list.is_array() || list.empty()) check.Refuse(name + ".decoders", "must be a list that ends with ByteLevel");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = name + ".decoders[" + std::to_string(i) + "]";
    if (i + 1 == list.size()) {
      ReadByteLevel(check, list[i], field, false);
      continue;
    }
    check.Type(list[i], field, "Replace");
    check.Keys(list[i], field, {"type", "pattern", "content"});
    if (check.String(list[i], field, "content") != "") check.Refuse(field + ".content", "must be empty");
    if (!list[i].contains("pattern")) check.Refuse(field + ".pattern", "is missing");
    check.Keys(list[i]["pattern"], field + ".pattern", {"String"});
    file->decoder_marks.push_back(check.String(list[i]["pattern"], field + ".pattern", "String"));
    if (file->decoder_marks.back().empty()) check.Refuse(field + ".pattern.String", "must not be empty");
  }
}

void ReadAddedTokens(const Checker& check, const Json& root, TokenizerFile* file) {
  if (!root.contains("added_tokens") || root["added_tokens"].is_null()) return;
  const Json& list = root["added_tokens"];
  if (!list.is_array()) check.Refuse("added_tokens", "must be a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = "added_tokens[" + std::to_string(i) + "]";
    const Json& object = list[i];
    check.Keys(object, field, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    if (!object.contains("id") || !object["id"].is_number_unsigned() || object["id"].get<uint64_t>() >= 0x7FFFFFFF) {
      check.Refuse(field + ".id", "must be a token id");
    }
    token.id = object["id"].get<int32_t>();
    token.content = check.String(object, field, "content");
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
      check.Refuse(field + ".content", "must have 1 to " + std::to_string(kMaxAddedTokenBytes) + " bytes");
    }
    token.special = check.Bool(object, field, "special", false);
    token.single_word = check.Bool(object, field, "single_word", false);
    token.lstrip = check.Bool(object, field, "lstrip", false);
    token.rstrip = check.Bool(object, field, "rstrip", false);
    token.normalized = check.Bool(object, field, "normalized", !token.special);
    file->added.push_back(std::move(token));
  }
}

void ReadModel(const Checker& check, const Json& root, TokenizerFile* file) {
  if (!root.contains("model")) check.Refuse("model", "is missing");
  const Json& model = root["model"];
  check.Type(model, "model", "BPE");
  check.Keys(model, "model",
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  check.Off(model, "model", "dropout", {0, 0.0});
  check.Off(model, "model", "unk_token", {});
  check.Off(model, "model", "continuing_subword_prefix", {""});
  check.Off(model, "model", "end_of_word_suffix", {""});
  check.Off(model, "model", "fuse_unk", {false});
  check.Off(model, "model", "byte_fallback", {false});
  check.Off(model, "model", "vocab", {});  // the reader takes an object away; anything else stays and is refused
  check.Off(model, "model", "merges", {});
  file->ignore_merges = check.Bool(model, "model", "ignore_merges", false);
}

}  // namespace

TokenizerFile ParseTokenizerFile(std::string_view json, std::string_view source) {
  TokenizerFile file;
  Json root;
  ReadTokenizerJson(json, source, &file, &root);
  const Checker check(source);
  check.Keys(root, "the document",
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
              "decoder", "model"});
  if (root.contains("version") && root["version"] != "1.0") check.Refuse("version", "must be \"1.0\"");
  check.Off(root, "", "truncation", {});
  check.Off(root, "", "padding", {});
  ReadNormalizer(check, root);
  ReadPreTokenizer(check, root, &file);
  if (root.contains("post_processor") && !root["post_processor"].is_null()) {
    ReadByteLevel(check, root["post_processor"], "post_processor", false);
  }
  ReadDecoder(check, root, &file);
  ReadAddedTokens(check, root, &file);
  ReadModel(check, root, &file);
  return file;
}

}  // namespace senko::text
