// Tokenizers for this room's tests.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace senko::api {

inline constexpr int32_t kTestEos = 1;

inline const text::Tokenizer& TinyTokenizer() {
  static const text::Tokenizer tokenizer =
      text::Tokenizer::FromFile(std::filesystem::path(SENKO_SOURCE_DIR) / "models/tiny/tokenizer.json");
  return tokenizer;
}

// A vocabulary like a parrot's (checkpoint/README.md): control tokens, one token a byte, and then one for each of
// `steps`, of any bytes and never produced by encoding; equal steps have different ids. Step i is kFirstStep + i.
inline constexpr int32_t kTestControls = 18;
inline constexpr int32_t kFirstStep = kTestControls + 256;

inline text::Tokenizer ScriptTokenizer(const std::vector<std::string>& steps) {
  static constexpr const char* kControls[] = {"<｜begin▁of▁sentence｜>",
                                              "<｜end▁of▁sentence｜>",
                                              "<｜▁pad▁｜>",
                                              "<｜User｜>",
                                              "<｜Assistant｜>",
                                              "<think>",
                                              "</think>",
                                              "<｜System｜>",
                                              "｜DSML｜",
                                              "<｜latest_reminder｜>",
                                              "<｜action｜>",
                                              "<｜query｜>",
                                              "<｜authority｜>",
                                              "<｜domain｜>",
                                              "<｜title｜>",
                                              "<｜read_url｜>",
                                              "<｜ref｜>",
                                              "<｜deepseek_image｜>"};
  static_assert(std::size(kControls) == kTestControls);
  // The byte-level alphabet: printable Latin-1 stands for itself, the other bytes take U+0100 onwards.
  static const std::vector<std::string> alphabet = [] {
    std::vector<std::string> out(256);
    char32_t spare = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      text::AppendUtf8(printable ? b : spare++, &out[b]);
    }
    return out;
  }();
  Json added = Json::array(), vocab = Json::object();
  int64_t id = 0;
  for (const char* control : kControls) {
    added.push_back({{"id", id},
                     {"content", control},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", id > 2},
                     {"special", id <= 2}});
    vocab[control] = id++;
  }
  for (const std::string& byte : alphabet) vocab[byte] = id++;
  std::string text = DumpJson(vocab);
  text.pop_back();
  for (size_t i = 0; i < steps.size(); ++i) {
    // Marks that the decoder removes make equal bytes distinct.
    std::string spelling;
    for (size_t number = i + 1; number != 0; number >>= 1) spelling += number & 1 ? "\uF8F1" : "\uF8F0";
    for (const char c : steps[i]) spelling += alphabet[static_cast<unsigned char>(c)];
    text += "," + DumpJson(Json(spelling)) + ":" + std::to_string(id++);
  }
  const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const auto replace = [](const char* mark) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", ""}};
  };
  const std::string json =
      "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":" + DumpJson(added) +
      ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},\"pre_tokenizer\":" + DumpJson(level) +
      ",\"post_processor\":" + DumpJson(level) + ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" +
      DumpJson(replace("\uF8F0")) + "," + DumpJson(replace("\uF8F1")) + "," + DumpJson(level) +
      "]},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
      "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"merges\":[],\"vocab\":" +
      text + "}}}";
  return text::Tokenizer::FromJson(json, "test tokenizer");
}

// The wording of a tools block is a checkpoint's; this one is short.
inline constexpr std::string_view kTestToolsTemplate =
    "## Tools\n<{dsml_token}{tc_block_name}>\n{tool_schemas}\n{thinking_start_token}{thinking_end_token}\n";

}  // namespace senko::api
