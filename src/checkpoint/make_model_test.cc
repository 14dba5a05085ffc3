#include "checkpoint/make_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/validate.h"

namespace senko::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(MakeModel, IsAFunctionOfConfigurationAndSeedAlone) {
  TestFolder folder;
  MakeTiny(folder / "a", 0, 3, 1);
  MakeTiny(folder / "b", 0, 3, 4);  // more threads
  MakeTiny(folder / "c", 0, 4, 1);
  for (const char* name : {"model.safetensors", "config.json", "engram_map.json", "tokenizer.json"}) {
    EXPECT_EQ(ReadBytes(folder / "a" / name), ReadBytes(folder / "b" / name)) << name;
  }
  EXPECT_NE(ReadBytes(folder / "a" / "model.safetensors"), ReadBytes(folder / "c" / "model.safetensors"));
  EXPECT_EQ(ReadBytes(folder / "a" / "config.json"), ReadBytes(ModelFolder("tiny") / "config.json"));
}

TEST(MakeModel, NoTensorIsTrivial) {
  TestFolder folder;
  MakeTiny(folder.path());
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  std::set<std::string> seen;
  for (const TensorRef& tensor : checkpoint.tensors()) {
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    EXPECT_NE(bytes.find_first_not_of(bytes[0]), std::string::npos) << tensor.name << " is constant";
    if (bytes.size() > 64) {
      EXPECT_TRUE(seen.insert(bytes).second) << tensor.name << " repeats another tensor";
    }
  }
}

TEST(MakeModel, GateBiasesPointBothWays) {
  TestFolder folder;
  MakeTiny(folder.path());
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  for (const char* name : {"layers.0.ffn.gate.bias", "layers.5.ffn.gate.bias_vl", "layers.3.attn.attn_sink"}) {
    const TensorRef& tensor = checkpoint.At(name);
    float low = 0, high = 0;
    for (size_t at = 0; at < tensor.bytes.size(); at += 4) {
      float value;
      std::memcpy(&value, &tensor.bytes[at], 4);
      low = std::min(low, value);
      high = std::max(high, value);
      EXPECT_LT(std::abs(value), 4.0f);
    }
    EXPECT_LT(low, 0.0f) << name;
    EXPECT_GT(high, 0.0f) << name;
  }
}

TEST(MakeModel, EngramMapIsOntoAndMovesThePad) {
  const config::ModelConfig config = config::LoadModelConfig(ModelFolder("tiny"));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<int64_t> map = RandomEngramMap(config, seed);
    ASSERT_EQ(static_cast<int64_t>(map.size()), config.vocab_size);
    const std::set<int64_t> values(map.begin(), map.end());
    EXPECT_EQ(static_cast<int64_t>(values.size()), config.engram.compressed_vocab_size);
    EXPECT_EQ(*values.begin(), 0);
    EXPECT_EQ(*values.rbegin(), config.engram.compressed_vocab_size - 1);
    EXPECT_NE(map[static_cast<size_t>(config.engram.pad_token_id)], config.engram.pad_token_id);
  }
  TestFolder folder;
  MakeTiny(folder.path(), 0, 9);
  EXPECT_EQ(ParseJson(ReadBytes(folder / "engram_map.json"), "map").get<std::vector<int64_t>>(),
            RandomEngramMap(config, 9));
}

// An Engram table far larger than the disk: 2^31-ish rows per head would be; here 1.3 GB that takes almost
// none.
TEST(MakeModel, SparseEngramTakesNoDisk) {
  TestFolder folder;
  Json json = ParseJson(ReadBytes(ModelFolder("tiny") / "config.json"), "tiny");
  json["text_config"]["engram_vocab_size"] = 3000000;
  json["text_config"]["engram_num_embeddings"] = {1, 1};
  WriteBytes(folder / "config.json", DumpJson(json));
  // The refusal states the sums, which is how a person finds them.
  const std::string refusal = Refusal([&] { config::LoadModelConfig(folder / "config.json"); });
  std::vector<int64_t> rows;
  for (size_t at = refusal.find("sum to "); at != std::string::npos; at = refusal.find("sum to ", at + 1)) {
    rows.push_back(std::stoll(refusal.substr(at + 7)));
  }
  ASSERT_EQ(rows.size(), 2u);
  json["text_config"]["engram_num_embeddings"] = rows;
  WriteBytes(folder / "config.json", DumpJson(json));
  MakeModelOptions options;
  options.config = folder / "config.json";
  options.out = folder / "model";
  options.sparse_engram = true;
  std::ostringstream log;
  MakeModel(options, log, {});
  struct stat info {};
  ASSERT_EQ(::stat((folder / "model" / "model.safetensors").c_str(), &info), 0);
  EXPECT_GT(info.st_size, int64_t{1} << 30);
  EXPECT_LT(info.st_blocks * 512, int64_t{32} << 20);
  const Checkpoint checkpoint = Checkpoint::Open(folder / "model");
  ValidateCheckpoint(checkpoint, config::LoadModelConfig(folder / "model"));
  EXPECT_EQ(checkpoint.At("layers.1.engram.embed.weight").bytes.back(), std::byte{0});
}

TEST(MakeModel, RefusesAnImpossibleNumberOfThreads) {
  TestFolder folder;
  for (const int threads : {-1, 1025}) {
    EXPECT_THAT(Refusal([&] { MakeTiny(folder / "out", 0, 1, threads); }),
                HasSubstr("--threads " + std::to_string(threads) + ": must be"));
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
}

TEST(MakeModel, NeverWritesOverAModel) {
  TestFolder folder;
  MakeTiny(folder.path());
  EXPECT_THAT(Refusal([&] { MakeTiny(folder.path()); }), HasSubstr("already holds"));
  TestFolder other;
  WriteBytes(other / "model-00001-of-00048.safetensors", "precious");
  EXPECT_THAT(Refusal([&] { MakeTiny(other.path()); }), HasSubstr("already holds model-00001"));
  EXPECT_EQ(ReadBytes(other / "model-00001-of-00048.safetensors"), "precious");
}

TEST(MakeModel, NeverWritesOverAPartOfAModel) {
  for (const char* name : {"tokenizer.json", "engram_map.json", "config.json", "model.safetensors.index.json"}) {
    TestFolder folder;
    WriteBytes(folder / name, "precious");
    EXPECT_THAT(Refusal([&] { MakeTiny(folder.path()); }), HasSubstr(std::string("already holds ") + name));
    EXPECT_EQ(ReadBytes(folder / name), "precious");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << name;
  }
}

// A folder in the way of each file's temporary name makes that one write fail after those before it.
TEST(MakeModel, AFailureLeavesTheFolderAsItWas) {
  for (const char* name : {"model-00001-of-00004.safetensors", "model-00003-of-00004.safetensors",
                           "model.safetensors.index.json", "engram_map.json", "tokenizer.json", "config.json"}) {
    TestFolder folder;
    const std::string obstacle = std::string(name) + ".partial";
    WriteBytes(folder / "notes.txt", "precious");
    fs::create_directory(folder / obstacle);
    EXPECT_THAT(Refusal([&] { MakeTiny(folder.path(), 3000000); }), HasSubstr(obstacle)) << name;
    std::set<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder.path())) left.insert(entry.path().filename());
    EXPECT_EQ(left, (std::set<std::string>{"notes.txt", obstacle}));
  }
}

// A limit on the size of a file stands for a full disk: writes beyond it fail in the same way.
TEST(MakeModel, AFailureRemovesTheFoldersItMade) {
  TestFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {0u, 100u, 1000000u, 11000000u}) {
    const rlimit small{limit, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string refusal = Refusal([&] { MakeTiny(folder / "a" / "b" / "out"); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_THAT(refusal, HasSubstr("resource_exhausted")) << limit;
    EXPECT_TRUE(fs::is_empty(folder.path())) << limit;
  }
  std::signal(SIGXFSZ, handler);
  MakeTiny(folder / "a" / "b" / "out");
  EXPECT_TRUE(fs::exists(folder / "a" / "b" / "out" / "config.json"));
}

TEST(MakeModel, RefusesWhatCannotFitBeforeWriting) {
  TestFolder folder;
  MakeModelOptions options;
  options.config = ModelFolder("deepseek-v4.1-flash");
  options.out = folder / "out";
  std::ostringstream log;
  if (fs::space(folder.path()).available > 510286023000u) GTEST_SKIP() << "this disk would hold the released model";
  EXPECT_THAT(Refusal([&] { MakeModel(options, log, {}); }), HasSubstr("needs 510286023000 bytes"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(MakeModel, ReportsProgressToTheEnd) {
  TestFolder folder;
  MakeModelOptions options;
  options.config = ModelFolder("tiny");
  options.out = folder.path();
  std::ostringstream log;
  Progress last;
  MakeModel(options, log, [&](const Progress& progress) { last = progress; });
  EXPECT_EQ(last.done, last.total);
  EXPECT_EQ(last.total, 11720770u);
  EXPECT_THAT(log.str(), HasSubstr("1490 tensors, 11720770 bytes, seed 0"));
}

}  // namespace
}  // namespace senko::checkpoint
