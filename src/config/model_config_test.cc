#include "config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace senko::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadModel(const char* name) {
  return ReadTextFile(std::filesystem::path(SENKO_SOURCE_DIR) / "models" / name / "config.json", 1 << 20);
}

Json Released() { return ParseJson(ReadModel("deepseek-v4.1-flash"), "released"); }
Json Tiny() { return ParseJson(ReadModel("tiny"), "tiny"); }

std::string Refusal(const Json& json, ErrorCode* code = nullptr) {
  try {
    ParseModelConfig(DumpJson(json), "config.json");
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "accepted";
}

// The same file in the inference spelling (model.md 1.2), which has no nested sections.
Json Flat(const Json& released) {
  const std::pair<const char*, const char*> renamed[] = {{"hidden_size", "dim"},
                                                         {"moe_intermediate_size", "moe_inter_dim"},
                                                         {"num_hidden_layers", "n_layers"},
                                                         {"num_nextn_predict_layers", "n_mtp_layers"},
                                                         {"num_attention_heads", "n_heads"},
                                                         {"num_experts_per_tok", "n_activated_experts"},
                                                         {"scoring_func", "score_func"},
                                                         {"routed_scaling_factor", "route_scale"},
                                                         {"qk_rope_head_dim", "rope_head_dim"},
                                                         {"rms_norm_eps", "norm_eps"},
                                                         {"sliding_window", "window_size"},
                                                         {"kv_source_layer_ids", "kv_source_layers"},
                                                         {"index_source_layer_ids", "index_source_layers"},
                                                         {"candidate_source_layer_id", "candidate_source_layer"},
                                                         {"engram_pad_token_id", "engram_pad_id"},
                                                         {"dspark_num_experts_per_tok", "dspark_n_activated_experts"}};
  const char* absent[] = {"model_type",     "num_key_value_heads",     "hidden_act",
                          "attention_bias", "attention_dropout",       "initializer_range",
                          "use_cache",      "tie_word_embeddings",     "topk_method",
                          "norm_topk_prob", "max_position_embeddings", "rope_scaling"};
  Json flat = released["text_config"];
  const Json rope = flat["rope_scaling"], vision = released["vision_config"];
  for (const auto& [from, to] : renamed) {
    flat[to] = flat[from];
    flat.erase(from);
  }
  for (const char* key : absent) flat.erase(key);
  flat["original_seq_len"] = rope["original_max_position_embeddings"];
  flat["rope_factor"] = rope["factor"];
  flat["beta_fast"] = rope["beta_fast"];
  flat["beta_slow"] = rope["beta_slow"];
  flat["vision_n_layers"] = vision["num_hidden_layers"];
  flat["vision_dim"] = vision["hidden_size"];
  flat["vision_n_heads"] = vision["num_attention_heads"];
  flat["vision_inter_dim"] = vision["intermediate_size"];
  flat["vision_patch_size"] = vision["patch_size"];
  flat["vision_rope_theta"] = vision["rope_theta"];
  flat["vision_downsample_ratio"] = vision["downsample_ratio"];
  flat["vision_max_n_token"] = vision["max_image_tokens"];
  flat["vision_min_pixels"] = vision["min_pixels"];
  flat["vision_max_wh_ratio"] = nullptr;
  flat["image_token_id"] = released["image_token_id"];
  flat["dtype"] = "fp8";
  flat["expert_dtype"] = "fp4";
  flat["scale_fmt"] = "ue8m0";
  flat["max_batch_size"] = 4;
  return flat;
}

void ExpectReleased(const ModelConfig& c) {
  EXPECT_EQ(c.vocab_size, 129280);
  EXPECT_EQ(c.hidden_size, 5120);
  EXPECT_EQ(c.num_layers, 40);
  EXPECT_EQ(c.num_heads, 64);
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_EQ(c.rope_dim, 64);
  EXPECT_EQ(c.q_lora_rank, 1280);
  EXPECT_EQ(c.o_lora_rank, 1024);
  EXPECT_EQ(c.o_groups, 8);
  EXPECT_EQ(c.max_positions, 1048576);
  EXPECT_EQ(c.rms_norm_eps, 1e-20);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.compress_rope_theta, 160000);
  EXPECT_EQ(c.yarn.original_max_positions, 65536);
  EXPECT_EQ(c.yarn.factor, 16);
  EXPECT_EQ(c.yarn.beta_fast, 32);
  EXPECT_EQ(c.yarn.beta_slow, 1);
  EXPECT_EQ(c.window, 128);
  EXPECT_EQ(c.ratios.size(), 40u);
  EXPECT_EQ(c.kv_sources, (std::vector<int64_t>{2, 8, 14, 20}));
  EXPECT_EQ(c.index_sources, (std::vector<int64_t>{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(c.index_heads, 32);
  EXPECT_EQ(c.index_dim, 128);
  EXPECT_EQ(c.index_topk, 512);
  EXPECT_EQ(c.candidate_source, 20);
  EXPECT_EQ(c.candidate_blocks, 2048);
  EXPECT_EQ(c.candidate_block_size, 8);
  EXPECT_EQ(c.hc_mult, 4);
  EXPECT_EQ(c.hc_iters, 20);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_EQ(c.num_experts, 384);
  EXPECT_EQ(c.num_shared_experts, 1);
  EXPECT_EQ(c.experts_per_token, 6);
  EXPECT_EQ(c.moe_intermediate_size, 2304);
  EXPECT_EQ(c.routed_scaling_factor, 1.5);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.gate_temperature, 1.0);
  EXPECT_EQ(c.swiglu_limit, 10.0);
  EXPECT_EQ(c.engram.layers, (std::vector<int64_t>{1, 14}));
  EXPECT_EQ(c.engram.rows, (std::vector<int64_t>{384006168, 384016682}));
  EXPECT_EQ(c.engram.pad_token_id, 2);
  EXPECT_EQ(c.engram.compressed_vocab_size, 99092);
  EXPECT_EQ(c.dspark.num_stages, 3);
  EXPECT_EQ(c.dspark.noise_token_id, 128799);
  EXPECT_EQ(c.dspark.target_layers, (std::vector<int64_t>{37, 38, 39}));
  EXPECT_EQ(c.dspark.experts_per_token, 3);
  EXPECT_EQ(c.vision.num_layers, 32);
  EXPECT_EQ(c.vision.intermediate_size, 2816);
  EXPECT_EQ(c.vision.max_image_tokens, 1024);
  EXPECT_EQ(c.vision.min_pixels, 295936);
  EXPECT_EQ(c.image_token_id, 129264);
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_EQ(c.eos_token_id, 1);
  EXPECT_EQ(c.pad_token_id, 2);
}

TEST(ModelConfig, ReadsTheReleasedSpelling) { ExpectReleased(ParseModelConfig(DumpJson(Released()), "x")); }
TEST(ModelConfig, ReadsTheInferenceSpelling) { ExpectReleased(ParseModelConfig(DumpJson(Flat(Released())), "x")); }

TEST(ModelConfig, LoadsAFileOrItsFolder) {
  const std::filesystem::path folder = std::filesystem::path(SENKO_SOURCE_DIR) / "models" / "tiny";
  EXPECT_EQ(LoadModelConfig(folder).hidden_size, 256);
  EXPECT_EQ(LoadModelConfig(folder / "config.json").hidden_size, 256);
  EXPECT_THROW(LoadModelConfig(folder / "none.json"), Error);
}

TEST(ModelConfig, YarnEngramDraftAndVisionAreOptional) {
  Json json = Tiny();
  json.erase("vision_config");
  json.erase("quantization_config");
  for (const char* key : {"rope_scaling", "engram_layer_ids", "num_nextn_predict_layers"})
    json["text_config"].erase(key);
  json["text_config"]["compress_ratios"].erase(10);
  json["text_config"]["compress_ratios"].erase(10);
  const ModelConfig config = ParseModelConfig(DumpJson(json), "x");
  EXPECT_EQ(config.yarn.original_max_positions, 0);
  EXPECT_TRUE(config.engram.layers.empty());
  EXPECT_EQ(config.dspark.num_stages, 0);
  EXPECT_EQ(config.vision.num_layers, 0);
}

TEST(ModelConfig, RefusesUnknownKeysByName) {
  Json json = Tiny();
  json["text_config"]["attention_mode"] = "clever";
  json["rope.type"] = "yarn";
  ErrorCode code{};
  EXPECT_THAT(Refusal(json, &code),
              AllOf(HasSubstr("text_config.attention_mode: unknown key"), HasSubstr("rope.type: unknown key")));
  EXPECT_EQ(code, ErrorCode::kUnsupported);
}

TEST(ModelConfig, ListsEveryViolationAtOnce) {
  Json json = Tiny();
  Json& text = json["text_config"];
  text["hidden_size"] = 250;
  text["sliding_window"] = 0;
  text["hc_eps"] = "small";
  text.erase("head_dim");
  text["kv_source_layer_ids"] = {2, 4, 6, 7};
  EXPECT_THAT(Refusal(json),
              AllOf(HasSubstr("hidden_size = 250"), HasSubstr("sliding_window = 0"), HasSubstr("hc_eps = \"small\""),
                    HasSubstr("head_dim: missing"), HasSubstr("layer 7 is not an index source")));
}

struct BadValue {
  const char* key;
  Json value;
  const char* message;
};

TEST(ModelConfig, EachRuleNamesItsField) {
  const BadValue cases[] = {
      {"kv_source_layer_ids", {4, 2, 6}, "strictly ascending"},
      {"kv_source_layer_ids", {2, 4, 60}, "strictly ascending"},
      {"index_source_layer_ids", {0, 2, 4, 6, 8}, "layer 0 comes before the first KV source"},
      {"compress_ratios", {0, 0, 2, 1, 2, 2, 1, 1, 1, 1, 0, 0}, "layer 3 has ratio 1"},
      {"compress_ratios", {0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0}, "layer 1 has ratio 2, but no KV source"},
      {"compress_ratios", {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 1}, "entry 11 is a draft stage"},
      {"compress_ratios", {0, 0, 2}, "3 entries"},
      {"compress_ratios", {0, 0, 3}, "must be an integer from 0 to 2"},
      {"candidate_source_layer_id", 4, "must be the last KV source"},
      {"candidate_topk_blocks", 2, "fewer than index_topk"},
      {"num_attention_heads", 7, "multiple of o_groups"},
      {"num_experts_per_tok", 17, "at most n_routed_experts"},
      {"qk_rope_head_dim", 34, "at most index_head_dim"},
      {"q_lora_rank", 48, "multiple of the quantisation block"},
      {"engram_num_embeddings", {6156, 1}, "the primes of its hash sum to"},
      {"engram_layer_ids", {4, 1}, "strictly ascending"},
      {"engram_head_dim", 48, "multiple of 32"},
      {"engram_compressed_vocab_size", 513, "at most vocab_size"},
      {"dspark_target_layer_ids", {7, 8, 10}, "below num_hidden_layers"},
      {"dspark_noise_token_id", 512, "below vocab_size"},
      {"scoring_func", "sigmoid", "only \"sqrtsoftplus\" is supported"},
      {"num_key_value_heads", 8, "only 1 is supported"},
      {"attention_bias", true, "only false is supported"},
      {"vocab_size", 9223372036854775807, "must be an integer from 1"},
      {"vocab_size", 18446744073709551615u, "must be an integer from 1"},
      {"vocab_size", -1, "must be an integer from 1"},
      {"vocab_size", 511.5, "must be an integer from 1"},
      {"hc_mult", nullptr, "must be an integer from 1"},
      {"norm_topk_prob", 1, "must be true or false"},
      {"rope_scaling", "yarn", "must be an object"},
      {"dim", 512, "contradicts"},
  };
  for (const BadValue& bad : cases) {
    Json json = Tiny();
    const bool flat = std::string_view(bad.key) == "dim";
    (flat ? json : json["text_config"])[bad.key] = bad.value;
    EXPECT_THAT(Refusal(json), AllOf(HasSubstr(bad.key), HasSubstr(bad.message), HasSubstr("config.json")))
        << bad.key << " = " << DumpJson(bad.value);
  }
}

// What the operators take is accepted, one past it is refused by name.
TEST(ModelConfig, OperatorLimitsAreInclusive) {
  struct Limit {
    const char* key;
    Json most, past;
  };
  const Limit limits[] = {
      {"hc_mult", 8, 9},
      {"num_experts_per_tok", 64, 65},
      {"dspark_num_experts_per_tok", 64, 65},
      {"vocab_size", 524288, 524289},
      {"rope_theta", 2, 1.99},
      {"compress_rope_theta", 2, 1.99},
  };
  for (const Limit& limit : limits) {
    Json json = Tiny();
    json["text_config"]["n_routed_experts"] = 128;
    json["text_config"]["dspark_n_routed_experts"] = 128;
    json["text_config"][limit.key] = limit.most;
    EXPECT_EQ(Refusal(json), "accepted") << limit.key;
    json["text_config"][limit.key] = limit.past;
    EXPECT_THAT(Refusal(json), AllOf(HasSubstr(std::string("text_config.") + limit.key + " = "), HasSubstr("from ")));
  }
}

TEST(ModelConfig, HostileFilesAreRefusedNotCrashed) {
  EXPECT_THAT(Refusal(Json(7)), HasSubstr("must hold a JSON object"));
  EXPECT_THAT(Refusal(Json::object()), HasSubstr("vocab_size: missing"));
  EXPECT_THROW(ParseModelConfig("{", "x"), Error);
  EXPECT_THROW(ParseModelConfig(std::string(1 << 20, ' '), "x"), Error);
  Json many = Json::object();
  for (int i = 0; i < 2000; ++i) many["key" + std::to_string(i)] = i;
  EXPECT_LT(Refusal(many).size(), 20000u);  // the list is bounded
}

}  // namespace
}  // namespace senko::config
