// The wording of the tools block (model.md 7.4), which comes with the checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt.h"

namespace senko::text {

class ToolsPrompt {
 public:
  // `text` is a Python format string: {tool_schemas} exactly once, and any of {dsml_token}, {tc_block_name},
  // {tool_call_tag_name}, {tool_parameter_tag_name}, {thinking_start_token}, {thinking_end_token}; "{{" and
  // "}}" are braces. Errors: kCorrupt naming `source`, the placeholder and its byte.
  static ToolsPrompt FromTemplate(std::string_view text, std::string_view source);
  // The string constant TOOLS_TEMPLATE of a Python script, read without running it. Errors: kNotFound when
  // the script has none, kCorrupt when it is not a plain string constant.
  static ToolsPrompt FromPythonScript(std::string_view script, std::string_view source);
  // Looks beside the tokenizer: tools_prompt.txt (a template), then the scripts of encoding/, then
  // encoding*.py, in alphabetical order. nullopt if none has it. Errors: as above, kIo.
  static std::optional<ToolsPrompt> Find(const std::filesystem::path& model_folder);

  // Appends the block with `schemas` (one JSON object a line) as text.
  void Render(std::string_view schemas, Prompt* prompt) const;

 private:
  struct Piece {
    enum class Kind { kText, kControl, kSchemas } kind;
    std::string text;
  };
  std::vector<Piece> pieces_;
};

}  // namespace senko::text
