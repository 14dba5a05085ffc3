// text.linear: time in proportion to the text (but for a logarithm), whatever a user or a model writes. Each input is
// made to be the worst of its kind, and four times as much of it may take no more than kMostGrowth times as long.
#include <gtest/gtest.h>

#include "text/chat.h"
#include "text/chat_messages.h"
#include "text/detokenizer.h"
#include "text/python_json.h"
#include "text/special_tokens.h"
#include "text/splitter.h"
#include "text/stop_matcher.h"
#include "text/test_growth.h"
#include "text/test_support.h"
#include "text/tokenizer.h"
#include "text/turn_parser.h"

namespace senko::text {
namespace {

constexpr size_t kSize = size_t{256} << 10;  // bytes of the smaller input; the larger has 1 MiB

void ExpectLinear(const std::string& what, const std::function<void(size_t)>& work, size_t size = kSize) {
  EXPECT_LE(GrowthOfFourfold(size, work), kMostGrowth) << what;
}

TEST(Linear, AnAssistantsRecordedWords) {
  std::vector<std::string> units(std::begin(kGroundingTokens), std::end(kGroundingTokens));
  units.insert(units.end(), {"<", "<｜", "<｜re", "<｜ref｜>a<｜polygon｜>", "a"});
  for (const std::string& unit : units) {
    ExpectLinear(unit, [&](size_t size) {
      Message turn;
      turn.content = turn.reasoning = Repeated(unit, size);
      EXPECT_FALSE(RenderAssistantTurn(turn, true).segments().empty());
    });
  }
}

TEST(Linear, ManyTurnsBehindOneOfManyCalls) {
  constexpr size_t kTurns = 20'000;
  const auto turns = [](size_t calls) {
    std::vector<Message> messages(kTurns);
    for (size_t i = 0; i < kTurns; ++i) {
      messages[i].role = Role::kAssistant;
      messages[i].tool_calls.resize(i == 0 ? calls : 1);
      for (size_t k = 0; k < messages[i].tool_calls.size(); ++k) messages[i].tool_calls[k].id = std::to_string(k);
    }
    return messages;
  };
  const std::vector<Message> few = turns(1), many = turns(kTurns);
  // Twice the calls, which are copied, too; a look at all of them for every turn would be thousands of times more.
  EXPECT_LE(TimesTheWork([&] { EXPECT_EQ(ArrangeMessages(few).size(), kTurns); },
                         [&] { EXPECT_EQ(ArrangeMessages(many).size(), kTurns); }, 20),
            100);
}

const char* const kUnits[] = {"a",       "ab",       " ",    "\n",   " \n", "\r\n", "1",   "!",
                              "!a",      "\xCC\x81", "\xFF", "東",   "東a", "<",    "<｜", "</thin",
                              "<think>", "｜DSML｜", " a",   "\xE6", "\t ", "a1",   "=",   "\n\n\n<"};

TEST(Linear, Encoding) {
  std::vector<const Tokenizer*> tokenizers = {&Tiny()};
  std::optional<Tokenizer> released;
  if (std::filesystem::exists(V41Path())) tokenizers.push_back(&released.emplace(Tokenizer::FromFile(V41Path())));
  for (const Tokenizer* tokenizer : tokenizers) {
    for (const char* unit : kUnits) {
      ExpectLinear(
          unit,
          [&](size_t size) {
            const std::string text = Repeated(unit, size);
            EXPECT_FALSE(tokenizer->Encode(text, AddedTokens::kNone).empty());
            EXPECT_FALSE(tokenizer->Encode(text, AddedTokens::kAll).empty());
          },
          kSize / 4);
    }
  }
}

TEST(Linear, CuttingByPcre) {
  for (const std::string_view pattern : {kNumberPattern, kCjkPattern, kWordPattern}) {
    const auto splitter = MakePcreSplitter(std::string(pattern), "pattern");
    for (const char* unit : kUnits) {
      ExpectLinear(std::string(pattern) + unit, [&](size_t size) {
        const std::string text = Repeated(unit, size);
        std::vector<size_t> ends;
        splitter->Split(text, 0, SIZE_MAX, &ends);
        EXPECT_EQ(ends.back(), text.size());
      });
    }
  }
}

TEST(Linear, ParsingTurns) {
  const std::string dsml = "<" + std::string(kDsml),
                    opened = "\n\n" + dsml + " calls>\n" + dsml + " invoke name=\"f\">";
  const std::string parameter = dsml + " parameter name=\"x\" string=\"";
  const std::vector<std::string> beginnings = {"", opened, opened + parameter + "true\">",
                                               opened + parameter + "false\">"};
  std::vector<std::string> units(std::begin(kUnits), std::end(kUnits));
  units.insert(units.end(), {dsml, dsml + " parameter", dsml + " invoke", opened, "{", "[", "\"", parameter,
                             parameter + "false\">1</" + std::string(kDsml) + " parameter>"});
  for (const std::string& beginning : beginnings) {
    for (const std::string& unit : units) {
      for (const size_t cut : {size_t{1}, size_t{3}, SIZE_MAX}) {
        ExpectLinear(beginning + unit, [&](size_t size) {
          const std::string text = beginning + Repeated(unit, size / 8);
          TurnParser parser(TurnStart::kContent);
          size_t bytes = 0;
          for (size_t at = 0; at < text.size();) {
            std::vector<TurnEvent> events;
            const std::string_view piece = std::string_view(text).substr(at, cut);
            parser.Feed(piece, &events);
            at += piece.size();
            for (const TurnEvent& event : events) bytes += event.text.size();
          }
          std::vector<TurnEvent> events;
          parser.Finish(&events);
        });
      }
    }
  }
}

TEST(Linear, ManyCallsBehindOneOfManyParameters) {
  const std::string dsml = "<" + std::string(kDsml), close = "</" + std::string(kDsml);
  ExpectLinear("calls", [&](size_t size) {
    std::string text = "\n\n" + dsml + " calls>\n" + dsml + " invoke name=\"f\">";
    for (size_t i = 0; i < size / 64; ++i) {
      text += dsml + " parameter name=\"" + std::to_string(i) + "\" string=\"true\">" + close + " parameter>";
    }
    text += close + " invoke>" + Repeated(dsml + " invoke name=\"f\">" + close + " invoke>", size);
    EXPECT_GT(ParseTurn(text, TurnStart::kContent).tool_calls.size(), 1u);
  });
}

TEST(Linear, StopStrings) {
  const std::vector<std::string> stops = {std::string(4096, 'a') + "b", "ab", Repeated("aab", 3000) + "c"};
  for (const char* unit : {"a", "aa b", "aab"}) {
    for (const size_t cut : {size_t{1}, size_t{5}, SIZE_MAX}) {
      ExpectLinear(unit, [&](size_t size) {
        StopMatcher matcher(stops);
        const std::string text = Repeated(unit, size);
        for (size_t at = 0; at < text.size() && !matcher.stopped();) {
          const std::string_view piece = std::string_view(text).substr(at, cut);
          matcher.Push(piece);
          at += piece.size();
        }
      });
    }
  }
}

TEST(Linear, TextOfIds) {
  for (const int32_t id : {0, 1, 200, 255, Tiny().vocab_size() - 1}) {
    ExpectLinear("id " + std::to_string(id), [&](size_t size) {
      Detokenizer detokenizer(Tiny(), false);
      for (size_t i = 0; i < size; ++i) detokenizer.Push(id);
      detokenizer.Finish();
    });
  }
}

TEST(Linear, JsonOfTools) {
  for (const char* unit : {"\"", "\\", "\x01", "a", "[", "{"}) {
    ExpectLinear(unit, [&](size_t size) {
      const std::string text = Repeated(unit, size);
      EXPECT_THROW(ParseJson(text, "tools"), JsonError);
      EXPECT_GT(PythonJson(Json{{"description", text}}).size(), text.size());
    });
  }
}

}  // namespace
}  // namespace senko::text
