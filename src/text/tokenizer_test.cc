#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "text/special_tokens.h"
#include "text/test_support.h"

namespace senko::text {
namespace {

using Ids = std::vector<int32_t>;

std::string Bytes(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

TEST(Tokenizer, ReleasedProbes) {
  if (!std::filesystem::exists(V41Path())) GTEST_SKIP() << "no released tokenizer at " << V41Path();
  const Tokenizer tokenizer = Tokenizer::FromFile(V41Path());
  EXPECT_EQ(tokenizer.vocab_size(), 129280);
  EXPECT_EQ(tokenizer.sha256(), "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b");
  EXPECT_EQ(tokenizer.Encode("Hello, world! 123\nsecond line", AddedTokens::kAll),
            (Ids{19923, 14, 2058, 3, 223, 6895, 201, 10930, 2562}));
  EXPECT_EQ(tokenizer.Encode("你好，世界！ Καλημέρα κόσμε 🌍", AddedTokens::kAll),
            (Ids{30594, 303, 3427, 1175, 51901, 25696, 29537, 11983, 122189, 2781, 30619, 73369, 238}));
  EXPECT_EQ(tokenizer.Encode("The capital of France is", AddedTokens::kAll), (Ids{671, 6102, 294, 8760, 344}));
  const std::pair<std::string_view, int> special[] = {{kBos, 0},
                                                      {kEos, 1},
                                                      {"<｜▁pad▁｜>", 2},
                                                      {kSystemToken, 128799},
                                                      {kUserToken, 128803},
                                                      {kAssistantToken, 128804},
                                                      {kThinkOpen, 128821},
                                                      {kThinkClose, 128822},
                                                      {kDsml, 128825},
                                                      {kLatestReminderToken, 128828},
                                                      {"<｜action｜>", 128829},
                                                      {"<｜query｜>", 128830},
                                                      {"<｜authority｜>", 128831},
                                                      {"<｜domain｜>", 128832},
                                                      {"<｜title｜>", 128836},
                                                      {"<｜read_url｜>", 128845},
                                                      {"<｜deepseek_image｜>", 129264}};
  for (const auto& [spelling, id] : special) EXPECT_EQ(tokenizer.AddedTokenId(spelling), id) << spelling;
  EXPECT_FALSE(tokenizer.IsSpecial(128799));
  EXPECT_TRUE(tokenizer.IsSpecial(1));
}

TEST(Tokenizer, SmallTokenizerHasTheSpecialTokens) {
  EXPECT_EQ(Tiny().vocab_size(), 512);
  EXPECT_EQ(Tiny().AddedTokenId(kBos), 0);
  EXPECT_EQ(Tiny().AddedTokenId(kEos), 1);
  EXPECT_EQ(Tiny().AddedTokenId("<｜▁pad▁｜>"), 2);
  EXPECT_EQ(Tiny().AddedTokenId("<｜deepseek_image｜>"), 511);
  for (const auto token :
       {kSystemToken, kUserToken, kAssistantToken, kThinkOpen, kThinkClose, kDsml, kLatestReminderToken}) {
    EXPECT_TRUE(Tiny().AddedTokenId(token)) << token;
  }
  for (const auto task : kTasks) EXPECT_TRUE(Tiny().AddedTokenId("<｜" + std::string(task) + "｜>")) << task;
  EXPECT_FALSE(Tiny().AddedTokenId("the"));
}

// Every special token's spelling, alone, doubled, cut and glued to words: as user text it never becomes the
// token.
TEST(Tokenizer, PlainTextNeverBecomesAControlToken) {
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    const std::string spelling(Tiny().TokenSpelling(id));
    if (Tiny().AddedTokenId(spelling) != id) continue;
    for (const std::string& text : {spelling, spelling + spelling, "a" + spelling + "b", " " + spelling + "\n"}) {
      const Ids ids = Tiny().Encode(text, AddedTokens::kNone);
      for (const int32_t found : ids) EXPECT_FALSE(Tiny().AddedTokenId(Tiny().TokenSpelling(found))) << text;
      EXPECT_EQ(Bytes(Tiny(), ids), text);
      const Ids all = Tiny().Encode(text, AddedTokens::kAll);
      EXPECT_EQ(std::count(all.begin(), all.end(), id), text == spelling + spelling ? 2 : 1) << text;
    }
  }
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937_64 rng(11);
  for (int i = 0; i < 3000; ++i) {
    std::string text = i % 2 ? RandomBytes(rng, rng() % 200) : RandomUtf8(rng, rng() % 100);
    if (i % 3 == 0) text += text;
    EXPECT_EQ(Bytes(Tiny(), Tiny().Encode(text, AddedTokens::kNone)), text);
    EXPECT_EQ(Bytes(Tiny(), Tiny().Encode(text, AddedTokens::kAll)), text);
  }
  EXPECT_TRUE(Tiny().Encode("", AddedTokens::kAll).empty());
}

// A run of one class is one word of a million bytes; a quadratic step anywhere would not end within the
// test's limit.
TEST(Tokenizer, LongRunsOfOneClass) {
  std::vector<const Tokenizer*> tokenizers{&Tiny()};
  std::unique_ptr<Tokenizer> released;
  if (std::filesystem::exists(V41Path())) {
    released = std::make_unique<Tokenizer>(Tokenizer::FromFile(V41Path()));
    tokenizers.push_back(released.get());
  }
  for (const Tokenizer* tokenizer : tokenizers) {
    for (const std::string unit :
         {"a",    "Zq",   "7", " ",   "\n",      " \n",    "!",    "中", "あ", "\xCC\x81", "\xE2\x80\x8D",
          "\xFF", "\xC3", "<", "<｜", "</think", "｜DSML", "\x01", "a1", "!a"}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      EXPECT_EQ(Bytes(*tokenizer, tokenizer->Encode(text, AddedTokens::kAll)), text) << unit;
    }
  }
}

TEST(Tokenizer, ThreadsSeeTheSameIds) {
  std::mt19937_64 rng(5);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i)
    texts.push_back(RandomUtf8(rng, 80) + " the cat and the other that " + RandomUtf8(rng, 5));
  const Tokenizer fresh = Tokenizer::FromFile(TinyPath());
  std::vector<std::vector<Ids>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (const auto& text : texts) result.push_back(fresh.Encode(text, AddedTokens::kAll));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

// Each edit of a good file, and what the message must name.
TEST(Tokenizer, RefusesWhatItDoesNotUnderstandByName) {
  const Json good = Json::parse(ReadTextFile(TinyPath(), 1 << 20));
  const auto refuses = [&](const std::string& named, auto edit) {
    Json json = good;
    edit(json);
    try {
      Tokenizer::FromJson(json.dump(), "file.json");
      ADD_FAILURE() << "accepted: " << named;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what() << " for " << named;
      EXPECT_TRUE(std::string(error.what()).starts_with("file.json: ")) << error.what();
    }
  };
  refuses("novelty", [](Json& j) { j["novelty"] = 1; });
  refuses("version", [](Json& j) { j["version"] = "2.0"; });
  refuses("truncation", [](Json& j) { j["truncation"] = {{"max_length", 5}}; });
  refuses("padding", [](Json& j) { j["padding"] = Json::object(); });
  refuses("normalizer.type", [](Json& j) { j["normalizer"] = {{"type", "NFC"}}; });
  refuses("normalizer.normalizers", [](Json& j) { j["normalizer"]["normalizers"].push_back({{"type", "NFC"}}); });
  refuses("pre_tokenizer", [](Json& j) { j.erase("pre_tokenizer"); });
  refuses("pre_tokenizer.pretokenizers[0].behavior",
          [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; });
  refuses("pre_tokenizer.pretokenizers[1].invert",
          [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["invert"] = true; });
  refuses("pre_tokenizer.pretokenizers[2].pattern", [](Json& j) {
    j["pre_tokenizer"]["pretokenizers"][2]["pattern"] = {{"String", "a"}};
  });
  refuses("pre_tokenizer.pretokenizers[2].pattern.Regex",
          [](Json& j) { j["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"] = "(["; });
  refuses("pre_tokenizer.pretokenizers[3].add_prefix_space",
          [](Json& j) { j["pre_tokenizer"]["pretokenizers"][3]["add_prefix_space"] = true; });
  refuses("pre_tokenizer.pretokenizers[3].type", [](Json& j) {
    j["pre_tokenizer"]["pretokenizers"][3] = {{"type", "Metaspace"}};
  });
  refuses("post_processor.type", [](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}}; });
  refuses("decoder", [](Json& j) { j.erase("decoder"); });
  const auto decoders = [](Json step) {
    return Json{{"type", "Sequence"}, {"decoders", Json::array({step, {{"type", "ByteLevel"}}})}};
  };
  refuses("decoder.decoders", [](Json& j) { j["decoder"] = {{"type", "Sequence"}}; });
  refuses("decoder.decoders[0].type", [&](Json& j) { j["decoder"] = decoders({{"type", "Strip"}}); });
  refuses("decoder.decoders[0].content", [&](Json& j) {
    j["decoder"] = decoders({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}});
  });
  refuses("decoder.decoders[0].pattern.Regex", [&](Json& j) {
    j["decoder"] = decoders({{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", ""}});
  });
  refuses("decoder.decoders[0].pattern.String", [&](Json& j) {
    j["decoder"] = decoders({{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}});
  });
  refuses("decoder.decoders[1].type", [](Json& j) {
    j["decoder"] = {{"type", "Sequence"},
                    {"decoders", Json::array({{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", ""}},
                                              {{"type", "Fuse"}}})}};
  });
  refuses("model.type", [](Json& j) { j["model"]["type"] = "Unigram"; });
  refuses("model.dropout", [](Json& j) { j["model"]["dropout"] = 0.1; });
  refuses("model.unk_token", [](Json& j) { j["model"]["unk_token"] = "<unk>"; });
  refuses("model.byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; });
  refuses("model.continuing_subword_prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; });
  refuses("model.extra", [](Json& j) { j["model"]["extra"] = 0; });
  refuses("no token for byte 255", [](Json& j) {
    j["model"]["vocab"]["ÿÿ"] = j["model"]["vocab"]["ÿ"];
    j["model"]["vocab"].erase("ÿ");
  });
  refuses("ids must have no holes", [](Json& j) { j["model"].erase("vocab"); });
  refuses("model.merges[0]", [](Json& j) { j["model"]["merges"][0] = "a"; });
  refuses("model.merges[1]", [](Json& j) { j["model"]["merges"][1] = Json::array({"a"}); });
  refuses("model.merges[2]", [](Json& j) { j["model"]["merges"][2] = "zzz qqq"; });
  refuses("model.merges", [](Json& j) { j["model"]["merges"][3] = 7; });
  refuses("model.vocab", [](Json& j) { j["model"]["vocab"]["q"] = -1; });
  refuses("model.vocab", [](Json& j) { j["model"]["vocab"]["q"] = 5'000'000'000; });
  refuses("model.vocab", [](Json& j) { j["model"]["vocab"]["q"] = 2'000'000'000; });
  refuses("id 7 is given to two tokens", [](Json& j) { j["model"]["vocab"]["q"] = 7; });
  refuses("added_tokens[0].id", [](Json& j) { j["added_tokens"][0]["id"] = 9; });
  refuses("added_tokens[1].content", [](Json& j) { j["added_tokens"][1]["content"] = ""; });
  refuses("added_tokens[2].special", [](Json& j) { j["added_tokens"][2]["special"] = "yes"; });
  refuses("added_tokens[2].colour", [](Json& j) { j["added_tokens"][2]["colour"] = "red"; });
  refuses("is there twice", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); });
  refuses("so plain text could become a control token", [](Json& j) {
    Json token = j["added_tokens"][0];
    const std::string merge = j["model"]["merges"][0];
    token["content"] = merge.substr(0, merge.find(' ')) + merge.substr(merge.find(' ') + 1);
    token["id"] = j["model"]["vocab"][token["content"].get<std::string>()];
    j["added_tokens"].push_back(token);
  });
  EXPECT_NO_THROW(Tokenizer::FromJson(good.dump(), "file.json"));
}

TEST(Tokenizer, NamesTheByteOfBadJson) {
  for (const std::string text :
       {"", "{", "{\"model\": {\"vocab\": {\"a\": 1,}}}", "[1]", "nul", "{\"model\":{\"vocab\":[{}]}}"}) {
    EXPECT_THROW(Tokenizer::FromJson(text, "file.json"), Error) << text;
  }
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += '[';
  EXPECT_THROW(Tokenizer::FromJson(deep, "file.json"), Error);
  EXPECT_THROW(Tokenizer::FromFile("/nonexistent/tokenizer.json"), Error);
}

TEST(Tokenizer, MergesAsPairsGiveTheSameIds) {
  Json json = Json::parse(ReadTextFile(TinyPath(), 1 << 20));
  for (auto& merge : json["model"]["merges"]) {
    const std::string text = merge;
    merge = Json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  const Tokenizer other = Tokenizer::FromJson(json.dump(), "pairs");
  const std::string text = "The lamp in the window stayed lit; and then the others answered.";
  EXPECT_EQ(other.Encode(text, AddedTokens::kAll), Tiny().Encode(text, AddedTokens::kAll));
}

// A token that the decoder shortens to other tokens' bytes is never chosen for text, wherever it stands in
// the file.
TEST(Tokenizer, DecoderMarksDoNotChangeEncoding) {
  Json json = Json::parse(ReadTextFile(TinyPath(), 1 << 20));
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", Json::array({{{"type", "Replace"}, {"pattern", {{"String", "~q~"}}}, {"content", ""}},
                                               {{"type", "ByteLevel"}}})}};
  const int32_t size = Tiny().vocab_size();
  Json vocab = {{"~q~t", size}, {"~q~Ġt", size + 1}};
  for (const auto& [spelling, id] : json["model"]["vocab"].items()) vocab[spelling] = id;
  json["model"]["vocab"] = vocab;
  const Tokenizer tokenizer = Tokenizer::FromJson(json.dump(), "marks");
  EXPECT_EQ(tokenizer.TokenBytes(size), "t");
  for (const char* text : {"t", " t", "the cat sat", "q~~"}) {
    EXPECT_EQ(tokenizer.Encode(text, AddedTokens::kNone), Tiny().Encode(text, AddedTokens::kNone)) << text;
  }
}

// With ignore_merges a word that is a token is that token, even if its merges do not lead there; a control
// token never is.
TEST(Tokenizer, IgnoreMerges) {
  Json json = Json::parse(ReadTextFile(TinyPath(), 1 << 20));
  json["model"]["merges"] = Json::array();
  json["model"]["ignore_merges"] = true;
  const Tokenizer tokenizer = Tokenizer::FromJson(json.dump(), "ignore");
  EXPECT_EQ(tokenizer.Encode(" the", AddedTokens::kNone).size(), 1u);
  EXPECT_EQ(tokenizer.Encode(" zqz", AddedTokens::kNone).size(), 4u);
  EXPECT_GT(tokenizer.Encode("</think>", AddedTokens::kNone).size(), 1u);
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  for (const int32_t id : {-1, 512, 1 << 30}) EXPECT_THROW(Tiny().Decode(Ids{id}, false), Error);
  EXPECT_EQ(Tiny().Decode(Ids{0, *Tiny().AddedTokenId(kUserToken), 1}, true), kUserToken);
}

}  // namespace
}  // namespace senko::text
