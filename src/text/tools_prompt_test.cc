#include "text/tools_prompt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "text/python_json.h"
#include "text/python_literal.h"

namespace senko::text {
namespace {

std::string Render(const ToolsPrompt& tools) {
  Prompt prompt;
  tools.Render("SCHEMAS {x}", &prompt);
  return prompt.ToString();
}

TEST(PythonLiteral, ReadsStringConstants) {
  const auto value = [](const std::string& script) {
    return PythonStringConstant(script, "X", "s.py").value_or("(none)");
  };
  EXPECT_EQ(value("X = \"\"\"a\n\"b\" \\\"c\\\"\\n\"\"\"\n"), "a\n\"b\" \"c\"\n");
  EXPECT_EQ(value("Y = 1\nX: str = 'it\\'s' # done\n"), "it's");
  EXPECT_EQ(value("X = (\n  'a'  # one\n  \"b\"\n)\n"), "ab");
  EXPECT_EQ(value("X = r'\\n' u'\\u2581\\x41\\U0001F30D'"), "\\n\xE2\x96\x81\x41\xF0\x9F\x8C\x8D");
  EXPECT_EQ(value("X = 'a\\\nb'"), "ab");
  EXPECT_EQ(value("X == 'a'\nXY = 'b'\n  X = 'c'\nX = 'd'"), "d");
  EXPECT_EQ(value("print(X)"), "(none)");
  for (const char* bad : {"X = f'a'", "X = b'a'", "X = make()", "X = 'a' + 'b'", "X = 'a", "X = '''a''", "X = ('a'",
                          "X = '\\q'", "X = '\\u12'", "X = '\\ud800'", "X = 5", "X = "}) {
    EXPECT_THROW(PythonStringConstant(bad, "X", "s.py"), Error) << bad;
  }
}

TEST(ToolsPrompt, Template) {
  EXPECT_EQ(Render(ToolsPrompt::FromTemplate(
                "a {{b}} <{dsml_token}{tool_call_tag_name}> {thinking_start_token}\n{tool_schemas}\n", "t")),
            "a {b} <｜DSML｜ invoke> <think>\nSCHEMAS {x}\n");
  for (const char* bad : {"", "{tool_schemas}{tool_schemas}", "{tool_schemas} {", "} {tool_schemas}",
                          "{who} {tool_schemas}", "{} {tool_schemas}"}) {
    EXPECT_THROW(ToolsPrompt::FromTemplate(bad, "t"), Error) << bad;
  }
  Prompt prompt;
  ToolsPrompt::FromTemplate("x{dsml_token}{tool_schemas}", "t").Render("<think>", &prompt);
  ASSERT_EQ(prompt.segments().size(), 3u);
  EXPECT_TRUE(prompt.segments()[1].is_control);
  EXPECT_FALSE(prompt.segments()[2].is_control);
}

TEST(ToolsPrompt, FoundBesideTheTokenizer) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("senko_tools_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "encoding");
  EXPECT_FALSE(ToolsPrompt::Find(folder));
  std::ofstream(folder / "encoding/a_other.py") << "import os\n";
  std::ofstream(folder / "encoding/encoding.py") << "TOOLS_TEMPLATE = \"\"\"from script {tool_schemas}\"\"\"\n";
  ASSERT_TRUE(ToolsPrompt::Find(folder));
  EXPECT_EQ(Render(*ToolsPrompt::Find(folder)), "from script SCHEMAS {x}");
  std::ofstream(folder / "tools_prompt.txt") << "plain {tool_schemas}";
  EXPECT_EQ(Render(*ToolsPrompt::Find(folder)), "plain SCHEMAS {x}");
  std::filesystem::remove_all(folder);
  EXPECT_THROW(ToolsPrompt::FromPythonScript("x = 1", "s.py"), Error);
}

// Expected texts are Python's json.dumps(value, ensure_ascii=False).
TEST(PythonJson, WritesAsPythonDoes) {
  const auto dumps = [](const char* text) { return PythonJson(Json::parse(text)); };
  EXPECT_EQ(dumps(R"({"a":[1,2],"b":{},"c":[]})"), R"({"a": [1, 2], "b": {}, "c": []})");
  EXPECT_EQ(dumps(R"(["\u0001\u001f\"\\\/\b\f\n\r\t\u007fé中"])"),
            "[\"\\u0001\\u001f\\\"\\\\/\\b\\f\\n\\r\\t\x7Fé中\"]");
  EXPECT_EQ(dumps("[true,false,null,-0.0,1.0,1e15,123456789012345680.0,1e16,1e22,1.5e300]"),
            "[true, false, null, -0.0, 1.0, 1000000000000000.0, 1.2345678901234568e+17, 1e+16, 1e+22, 1.5e+300]");
  EXPECT_EQ(dumps("[0.0001,0.00001,1.5e-7,5e-324,0.1,123.456,-2.5]"),
            "[0.0001, 1e-05, 1.5e-07, 5e-324, 0.1, 123.456, -2.5]");
  EXPECT_EQ(dumps("[18446744073709551615,-9223372036854775808]"), "[18446744073709551615, -9223372036854775808]");
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += '[';
  for (int i = 0; i < 200; ++i) deep += ']';
  EXPECT_THROW(PythonJson(Json::parse(deep)), Error);
}

}  // namespace
}  // namespace senko::text
