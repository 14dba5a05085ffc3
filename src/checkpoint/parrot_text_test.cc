// A parrot's tokenizer.json as the text room reads it.
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/parrot.h"
#include "checkpoint/test_folder.h"
#include "text/tokenizer.h"

namespace senko::checkpoint {
namespace {

constexpr char kScripts[] = R"([
  {"trigger": "</think>", "tokens": ["a", "a", {"hex": "f09f"}, {"hex": "8c8d"}, "</think>", "<｜DSML｜ invo"]},
  {"trigger": "A", "text": "閃光", "cut": 1}
])";

TEST(ParrotTokenizer, EveryStepDecodesToItsOwnBytes) {
  const config::ModelConfig config = config::LoadModelConfig(ModelFolder("tiny"));
  const ParrotPlan plan = PlanParrot(config, kScripts, "s");
  const text::Tokenizer tokenizer = text::Tokenizer::FromJson(plan.tokenizer_json, "tokenizer.json");
  EXPECT_EQ(tokenizer.vocab_size(), config.vocab_size);
  const auto follow = [&](int64_t id) {
    std::string said;
    std::set<int64_t> seen;
    while ((id = plan.next[static_cast<size_t>(id)]) != config.eos_token_id) {
      EXPECT_TRUE(seen.insert(id).second) << "two steps share id " << id;
      said += std::string(tokenizer.TokenBytes(static_cast<int32_t>(id))) + "|";
    }
    return said;
  };
  EXPECT_EQ(follow(*tokenizer.AddedTokenId("</think>")), "a|a|\xF0\x9F|\x8C\x8D|</think>|<｜DSML｜ invo|");
  const auto a = tokenizer.Encode("A", text::AddedTokens::kNone);
  ASSERT_EQ(a.size(), 1u);
  EXPECT_EQ(follow(a[0]), "\xE9|\x96|\x83|\xE5|\x85|\x89|");
}

TEST(ParrotTokenizer, EncodesBytesAndControlTokensOnly) {
  const config::ModelConfig config = config::LoadModelConfig(ModelFolder("tiny"));
  const text::Tokenizer tokenizer = text::Tokenizer::FromJson(PlanParrot(config, kScripts, "s").tokenizer_json, "t");
  const std::string prompt = "aa 閃光 <｜DSML｜ invo </think>";
  EXPECT_EQ(tokenizer.Encode(prompt, text::AddedTokens::kNone).size(), prompt.size());
  const auto ids = tokenizer.Encode(prompt, text::AddedTokens::kAll);
  EXPECT_EQ(ids.back(), *tokenizer.AddedTokenId("</think>"));
  EXPECT_EQ(tokenizer.Decode(ids, false), prompt);
}

}  // namespace
}  // namespace senko::checkpoint
