#include "checkpoint/parrot_vocabulary.h"

#include "base/error.h"
#include "base/json.h"

namespace senko::checkpoint {
namespace {

// clang-format off
constexpr const char* kControlTokens[] = {
    "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜System｜>", "｜DSML｜", "<｜latest_reminder｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"};
// clang-format on
constexpr char kBos[] = "<｜begin▁of▁sentence｜>", kEos[] = "<｜end▁of▁sentence｜>", kPad[] = "<｜▁pad▁｜>";
constexpr char kImage[] = "<｜deepseek_image｜>";

// Two private-use characters, removed by the decoder, make spellings of equal bytes distinct: the step's
// number in binary stands in front. No byte is spelled with them.
constexpr const char* kMarks[] = {"\uF8F0", "\uF8F1"};

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

// The byte-level alphabet: printable Latin-1 stands for itself, the other bytes take U+0100 onwards.
std::string Spell(std::string_view bytes) {
  const auto printable = [](uint32_t b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); };
  std::string out;
  for (char byte : bytes) {
    const uint32_t value = static_cast<unsigned char>(byte);
    uint32_t spare = 0x100;
    for (uint32_t b = 0; b < value; ++b) spare += printable(b) ? 0 : 1;
    AppendUtf8(printable(value) ? value : spare, &out);
  }
  return out;
}

}  // namespace

ParrotVocabulary::ParrotVocabulary(const config::ModelConfig& config)
    : vocab_size_(config.vocab_size), spelling_(static_cast<size_t>(config.vocab_size)), byte_ids_(256) {
  const auto full = [&] {
    return Error(ErrorCode::kInvalidArgument,
                 "a parrot needs a vocab_size of at least 288 and bos, eos, pad and image "
                 "token ids that differ; this configuration has vocab_size " +
                     std::to_string(config.vocab_size));
  };
  const auto place = [&](const char* text, int64_t id) {
    std::string& spelling = spelling_[static_cast<size_t>(id)];
    if (!spelling.empty()) throw full();
    spelling = text;
    control_.emplace(text, id);
  };
  place(kBos, config.bos_token_id);
  place(kEos, config.eos_token_id);
  place(kPad, config.pad_token_id);
  if (config.image_token_id >= 0) place(kImage, config.image_token_id);
  const auto take = [&](std::string spelling) {
    while (next_free_ < vocab_size_ && !spelling_[static_cast<size_t>(next_free_)].empty()) ++next_free_;
    if (next_free_ == vocab_size_) throw full();
    spelling_[static_cast<size_t>(next_free_)] = std::move(spelling);
    return next_free_++;
  };
  for (const char* text : kControlTokens) control_.emplace(text, take(text));
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    byte_ids_[static_cast<size_t>(byte)] = take(Spell(std::string_view(&value, 1)));
  }
}

std::optional<int64_t> ParrotVocabulary::Control(std::string_view text) const {
  const auto it = control_.find(text);
  if (it != control_.end()) return it->second;
  if (text.size() == 1) return Byte(static_cast<unsigned char>(text[0]));
  return std::nullopt;
}

int64_t ParrotVocabulary::AddStep(std::string_view bytes) {
  while (next_free_ < vocab_size_ && !spelling_[static_cast<size_t>(next_free_)].empty()) ++next_free_;
  if (next_free_ == vocab_size_) return -1;
  std::string spelling;
  for (uint64_t number = ++steps_; number != 0; number >>= 1) spelling += kMarks[number & 1];
  spelling_[static_cast<size_t>(next_free_)] = spelling + Spell(bytes);
  return next_free_++;
}

std::string ParrotVocabulary::TokenizerJson() const {
  const auto quoted = [](const std::string& text) { return DumpJson(Json(text)); };
  std::string text = "{\n\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": [";
  bool first = true;
  for (const auto& [content, id] : control_) {
    const bool special = content == kBos || content == kEos || content == kPad;
    const bool normalized = !special && content != kImage;
    text += std::string(first ? "\n" : ",\n") + "{\"id\": " + std::to_string(id) + ", \"content\": " + quoted(content) +
            ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": " +
            (normalized ? "true" : "false") + ", \"special\": " + (special ? "true" : "false") + "}";
    first = false;
  }
  text +=
      "],\n\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []},\n"
      "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
      "\"use_regex\": false},\n"
      "\"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, "
      "\"use_regex\": true},\n\"decoder\": {\"type\": \"Sequence\", \"decoders\": [";
  for (const char* mark : kMarks) {
    text += "{\"type\": \"Replace\", \"pattern\": {\"String\": " + quoted(mark) + "}, \"content\": \"\"}, ";
  }
  text +=
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": "
      "true}]},\n"
      "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": "
      "null, "
      "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], "
      "\"vocab\": {";
  for (size_t id = 0; id < spelling_.size(); ++id) {
    const std::string& spelling = spelling_[id];
    text += std::string(id == 0 ? "\n" : ",\n") +
            quoted(spelling.empty() ? "<unused_" + std::to_string(id) + ">" : spelling) + ": " + std::to_string(id);
  }
  return text + "}}\n}\n";
}

}  // namespace senko::checkpoint
