#include "text/tools_prompt.h"

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/python_literal.h"
#include "text/special_tokens.h"

namespace senko::text {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

struct Placeholder {
  std::string_view name;
  std::string_view value;
  bool is_control;
};
constexpr Placeholder kPlaceholders[] = {
    {"dsml_token", kDsml, true},
    {"tc_block_name", kCallsTag, false},
    {"tool_call_tag_name", kInvokeTag, false},
    {"tool_parameter_tag_name", kParameterTag, false},
    {"thinking_start_token", kThinkOpen, true},
    {"thinking_end_token", kThinkClose, true},
};

std::vector<std::filesystem::path> Scripts(const std::filesystem::path& folder, std::string_view prefix) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".py" && name.starts_with(prefix)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

ToolsPrompt ToolsPrompt::FromTemplate(std::string_view text, std::string_view source) {
  ToolsPrompt prompt;
  int schemas = 0;
  const auto fail = [&](size_t at, const std::string& what) {
    throw Error(ErrorCode::kCorrupt,
                std::string(source) + ": tools template, byte " + std::to_string(at) + ": " + what);
  };
  const auto add = [&](Piece::Kind kind, std::string_view piece) {
    if (kind == Piece::Kind::kText && !prompt.pieces_.empty() && prompt.pieces_.back().kind == kind) {
      prompt.pieces_.back().text.append(piece);
    } else {
      prompt.pieces_.push_back({kind, std::string(piece)});
    }
  };
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      const size_t next = std::min(text.find_first_of("{}", at), text.size());
      add(Piece::Kind::kText, text.substr(at, next - at));
      at = next;
    } else if (at + 1 < text.size() && text[at + 1] == c) {
      add(Piece::Kind::kText, text.substr(at, 1));
      at += 2;
    } else {
      const size_t end = c == '{' ? text.find('}', at) : std::string_view::npos;
      if (end == std::string_view::npos) fail(at, "a single brace");
      const std::string_view name = text.substr(at + 1, end - at - 1);
      const auto known = std::find_if(std::begin(kPlaceholders), std::end(kPlaceholders),
                                      [&](const Placeholder& p) { return p.name == name; });
      if (name == "tool_schemas") {
        ++schemas;
        add(Piece::Kind::kSchemas, "");
      } else if (known == std::end(kPlaceholders)) {
        fail(at, "unknown placeholder {" + std::string(name.substr(0, 80)) + "}");
      } else {
        add(known->is_control ? Piece::Kind::kControl : Piece::Kind::kText, known->value);
      }
      at = end + 1;
    }
  }
  if (schemas != 1)
    fail(text.size(), "{tool_schemas} must be there once, it is there " + std::to_string(schemas) + " times");
  return prompt;
}

ToolsPrompt ToolsPrompt::FromPythonScript(std::string_view script, std::string_view source) {
  const auto text = PythonStringConstant(script, "TOOLS_TEMPLATE", source);
  if (!text) throw Error(ErrorCode::kNotFound, std::string(source) + ": no string constant TOOLS_TEMPLATE");
  return FromTemplate(*text, source);
}

std::optional<ToolsPrompt> ToolsPrompt::Find(const std::filesystem::path& model_folder) {
  const std::filesystem::path plain = model_folder / "tools_prompt.txt";
  std::error_code ignored;
  if (std::filesystem::exists(plain, ignored)) {
    return FromTemplate(ReadTextFile(plain, kMaxFileBytes), plain.string());
  }
  std::vector<std::filesystem::path> scripts = Scripts(model_folder / "encoding", "");
  const std::vector<std::filesystem::path> beside = Scripts(model_folder, "encoding");
  scripts.insert(scripts.end(), beside.begin(), beside.end());
  for (const auto& path : scripts) {
    const std::string script = ReadTextFile(path, kMaxFileBytes);
    if (const auto text = PythonStringConstant(script, "TOOLS_TEMPLATE", path.string())) {
      return FromTemplate(*text, path.string());
    }
  }
  return std::nullopt;
}

void ToolsPrompt::Render(std::string_view schemas, Prompt* prompt) const {
  for (const Piece& piece : pieces_) {
    switch (piece.kind) {
      case Piece::Kind::kText:
        prompt->Text(piece.text);
        break;
      case Piece::Kind::kControl:
        prompt->Control(piece.text);
        break;
      case Piece::Kind::kSchemas:
        prompt->Text(schemas);
        break;
    }
  }
}

}  // namespace senko::text
