#include "checkpoint/parrot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/scan.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/validate.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

namespace senko::checkpoint {
namespace {

using ::testing::HasSubstr;

// Every awkward kind at once: equal bytes in several steps, half an emoji, a control token's text as plain
// bytes, a real control token, a loop.
constexpr char kScripts[] = R"([
  {"trigger": "</think>", "tokens": ["a", "a", "<", "/th", "ink>", {"hex": "f09f"}, {"hex": "8c8d"}, "<｜DSML｜ invo", "a"]},
  {"trigger": "A", "text": "閃光, a", "cut": 1},
  {"trigger": "<think>", "tokens": ["x", {"control": "｜DSML｜"}, "y"], "end": "loop"}
])";

config::ModelConfig Tiny() { return config::LoadModelConfig(ModelFolder("tiny")); }

// What the file's decoder makes of a vocabulary entry: marks removed, then the byte-level alphabet read back.
std::string Decode(std::string spelling, const Json& tokenizer) {
  for (const Json& step : tokenizer["decoder"]["decoders"]) {
    if (step["type"] != "Replace") continue;
    const std::string mark = step["pattern"]["String"];
    for (size_t at; (at = spelling.find(mark)) != std::string::npos;) spelling.erase(at, mark.size());
  }
  std::map<std::string, char> alphabet;
  int spare = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int c = printable ? byte : spare++;
    std::string text;
    if (c < 0x80)
      text = std::string(1, static_cast<char>(c));
    else
      text = {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
    alphabet[text] = static_cast<char>(byte);
  }
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const size_t size = static_cast<unsigned char>(spelling[at]) < 0x80 ? 1 : 2;
    const auto it = alphabet.find(spelling.substr(at, size));
    if (it == alphabet.end()) return spelling;
    bytes.push_back(it->second);
    at += size;
  }
  return bytes;
}

std::string Follow(const ParrotPlan& plan, const config::ModelConfig& config, const std::string& trigger,
                   size_t limit) {
  const Json tokenizer = ParseJson(plan.tokenizer_json, "tokenizer.json");
  std::map<int64_t, std::string> spelling;
  for (const auto& [text, id] : tokenizer["model"]["vocab"].items()) spelling[id.get<int64_t>()] = text;
  std::string said;
  for (int64_t id = plan.next[tokenizer["model"]["vocab"][trigger].get<size_t>()];
       id != config.eos_token_id && limit-- > 0; id = plan.next[static_cast<size_t>(id)]) {
    said += Decode(spelling[id], tokenizer) + "|";
  }
  return said;
}

TEST(Parrot, RecitesItsScripts) {
  const config::ModelConfig config = Tiny();
  const ParrotPlan plan = PlanParrot(config, kScripts, "script.json");
  EXPECT_EQ(Follow(plan, config, "</think>", 100), "a|a|<|/th|ink>|\xF0\x9F|\x8C\x8D|<｜DSML｜ invo|a|");
  EXPECT_EQ(Follow(plan, config, "A", 100), "\xE9|\x96|\x83|\xE5|\x85|\x89|,| |a|");
  EXPECT_EQ(Follow(plan, config, "<think>", 7), "x|｜DSML｜|y|x|｜DSML｜|y|x|");
  EXPECT_EQ(Follow(plan, config, "B", 100), "");  // everything else ends at once
}

TEST(Parrot, TokenizerCoversEveryIdOnce) {
  const config::ModelConfig config = Tiny();
  const Json tokenizer = ParseJson(PlanParrot(config, kScripts, "s").tokenizer_json, "tokenizer.json");
  std::set<int64_t> ids;
  std::set<std::string> bytes;
  for (const auto& [text, id] : tokenizer["model"]["vocab"].items()) {
    ids.insert(id.get<int64_t>());
    bytes.insert(Decode(text, tokenizer));
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), config.vocab_size);
  EXPECT_EQ(*ids.rbegin(), config.vocab_size - 1);
  for (int byte = 0; byte < 256; ++byte) EXPECT_TRUE(bytes.contains(std::string(1, static_cast<char>(byte))));
  EXPECT_EQ(tokenizer["model"]["vocab"]["<｜deepseek_image｜>"], config.image_token_id);
}

class ParrotWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteBytes(folder_ / "script.json", kScripts);
    MakeModelOptions options;
    options.config = ModelFolder("tiny");
    options.out = folder_ / "model";
    options.parrot = folder_ / "script.json";
    options.seed = std::random_device{}();
    std::ostringstream log;
    MakeModel(options, log, {});
  }
  TestFolder folder_;
};

// The model's function when every sublayer adds zero: logits = head . norm(embedding).
TEST_F(ParrotWeights, GreedyFollowsThePlanWithRoomToSpare) {
  const config::ModelConfig config = Tiny();
  const ParrotPlan plan = PlanParrot(config, kScripts, "s");
  const Checkpoint checkpoint = Checkpoint::Open(folder_ / "model");
  ValidateCheckpoint(checkpoint, config);
  const auto row = [&](const char* name, int64_t r) {
    std::vector<float> values(static_cast<size_t>(config.hidden_size));
    for (size_t c = 0; c < values.size(); ++c) {
      uint16_t code;
      std::memcpy(&code, &checkpoint.At(name).bytes[(static_cast<size_t>(r * config.hidden_size) + c) * 2], 2);
      values[c] = numerics::Bf16ToFloat(code);
    }
    return values;
  };
  std::vector<std::vector<float>> head;
  for (int64_t n = 0; n < config.vocab_size; ++n) head.push_back(row("head.weight", n));
  for (int64_t t = 0; t < config.vocab_size; ++t) {
    const std::vector<float> x = row("embed.weight", t);  // already of root mean square 1
    const int64_t wanted = plan.next[static_cast<size_t>(t)];
    for (int64_t n = 0; n < config.vocab_size; ++n) {
      float logit = 0;
      for (size_t c = 0; c < x.size(); ++c) logit += x[c] * head[static_cast<size_t>(n)][c];
      if (n == wanted)
        EXPECT_EQ(logit, static_cast<float>(config.hidden_size));
      else
        ASSERT_LE(logit, static_cast<float>(config.hidden_size) / 2) << t << " -> " << n;
    }
  }
}

TEST_F(ParrotWeights, NothingReachesTheStreams) {
  const Checkpoint checkpoint = Checkpoint::Open(folder_ / "model");
  int zero = 0, random = 0;
  for (const TensorRef& tensor : checkpoint.tensors()) {
    const bool all_zero = std::ranges::all_of(tensor.bytes, [](std::byte b) { return b == std::byte{0}; });
    const bool wanted = tensor.name.ends_with("wo_b.weight") || tensor.name.ends_with(".w2.weight") ||
                        tensor.name.ends_with("engram.wkv.weight") || tensor.name.find(".hc_") != std::string::npos;
    if (tensor.name.starts_with("aligner") || tensor.name.starts_with("vision")) continue;
    EXPECT_EQ(all_zero, wanted) << tensor.name;
    zero += all_zero;
    random += !all_zero;
  }
  // Ten layers and two drafts: 176 routed and 12 shared w2, 12 wo_b, 72 mixing tensors; two Engram wkv.
  EXPECT_EQ(zero, 274);
  EXPECT_GT(random, 300);
}

TEST(Parrot, BadScriptsNameTheScript) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "invalid JSON"},
      {"{}", "must be a list of scripts"},
      {"[]", "holds no scripts"},
      {"[3]", "script 0: must be an object"},
      {R"([{"trigger": "A", "tokens": ["x"], "stop": 1}])", "unknown key \"stop\""},
      {R"([{"tokens": ["x"]}])", "needs a \"trigger\""},
      {R"([{"trigger": "hello", "tokens": ["x"]}])", "neither a control token nor a single byte"},
      {R"([{"trigger": "A"}])", "needs a \"tokens\" list"},
      {R"([{"trigger": "A", "tokens": []}])", "has no tokens"},
      {R"([{"trigger": "A", "tokens": [""]}])", "1 to 65536 bytes"},
      {R"([{"trigger": "A", "tokens": [7]}])", "a token is a string"},
      {R"([{"trigger": "A", "tokens": [{"hex": "0"}]}])", "odd number of digits"},
      {R"([{"trigger": "A", "tokens": [{"hex": "zz"}]}])", "not hexadecimal"},
      {R"([{"trigger": "A", "tokens": [{"control": "<no>"}]}])", "\"<no>\" is not a control token"},
      {R"([{"trigger": "A", "tokens": ["x"], "end": "never"}])", "end must be"},
      {R"([{"trigger": "A", "text": "x"}])", "positive \"cut\""},
      {R"([{"trigger": "A", "text": "x", "cut": 0}])", "positive \"cut\""},
      {R"([{"trigger": "A", "text": "x", "cut": 1, "tokens": []}])", "either \"tokens\" or"},
      {R"([{"trigger": "A", "tokens": ["x"]}, {"trigger": "A", "tokens": ["y"]}])", "script 1: token"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(Refusal([&] { PlanParrot(Tiny(), text, "script.json"); }),
                ::testing::AllOf(HasSubstr("script.json: "), HasSubstr(message)))
        << text;
  }
  const std::string long_script = R"([{"trigger": "A", "cut": 1, "text": ")" + std::string(1000, 'x') + "\"}]";
  EXPECT_THAT(Refusal([&] { PlanParrot(Tiny(), long_script, "s"); }),
              ::testing::AllOf(HasSubstr("resource_exhausted"), HasSubstr("vocab_size = 512")));
}

}  // namespace
}  // namespace senko::checkpoint
