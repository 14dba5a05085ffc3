// The alphabet of this room's random scripts: pieces that meet each other in interesting ways.
#pragma once

#include <string>
#include <vector>

namespace senko::api {

// A whole block of calls; the only word behind kFirstDsmlWord that leaves no bytes of DSML in an answer.
inline const std::string& BlockWord() {
  static const std::string block =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"g\">\n<｜DSML｜ parameter name=\"p\" string=\"true\">v🌍</｜DSML｜ "
      "parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  return block;
}

// Tags and their parts, parts of characters, what may be a stop. Words from kFirstDsmlWord on hold parts of tags.
inline constexpr size_t kFirstDsmlWord = 29;
inline const std::vector<std::string>& Words() {
  static const std::vector<std::string> words = {"a",
                                                 "b",
                                                 "ab",
                                                 "abc",
                                                 " ",
                                                 "\n",
                                                 "\n\n",
                                                 "<",
                                                 "</",
                                                 "</think>",
                                                 "</thi",
                                                 "nk>",
                                                 "<think>",
                                                 "1",
                                                 "{\"x\":[2]}",
                                                 "\"",
                                                 "\\",
                                                 "\x01",
                                                 "\x7F",
                                                 "é",
                                                 "🌍",
                                                 "\xF0",
                                                 "\x9F",
                                                 "\x8C",
                                                 "\x8D",
                                                 "\xE2\x80",
                                                 "\xFF",
                                                 "日本",
                                                 "STOP",  // 29 words
                                                 "｜",
                                                 "｜DSML｜",
                                                 "<｜DSML｜",
                                                 "\n\n<｜DSML｜ calls>\n",
                                                 "<｜DSML｜ invoke name=\"f\">\n",
                                                 "<｜DSML｜ parameter name=\"p\" string=\"true\">",
                                                 "<｜DSML｜ parameter name=\"q\" string=\"false\">",
                                                 "</｜DSML｜ parameter>\n",
                                                 "</｜DSML｜ invoke>\n",
                                                 "</｜DSML｜ calls>"};
  return words;
}

}  // namespace senko::api
