#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "checkpoint/inspect.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/validate.h"

namespace senko::checkpoint {
namespace {

config::ModelConfig Tiny() { return config::LoadModelConfig(ModelFolder("tiny")); }

TEST(Checkpoint, ShardsAndOneFileHoldTheSameTensors) {
  TestFolder folder;
  MakeTiny(folder / "one");
  MakeTiny(folder / "many", 2000000);
  const Checkpoint one = Checkpoint::Open(folder / "one"), many = Checkpoint::Open(folder / "many");
  EXPECT_EQ(one.num_files(), 1u);
  EXPECT_GT(many.num_files(), 4u);
  EXPECT_EQ(one.total_bytes(), many.total_bytes());
  ASSERT_EQ(one.tensors().size(), many.tensors().size());
  for (const TensorRef& tensor : one.tensors()) {
    const TensorRef& twin = many.At(tensor.name);
    EXPECT_EQ(tensor.dtype, twin.dtype);
    EXPECT_EQ(tensor.shape, twin.shape);
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, twin.bytes)) << tensor.name;
  }
  ValidateCheckpoint(one, Tiny());
  ValidateCheckpoint(many, Tiny());
  EXPECT_EQ(one.Find("none"), nullptr);
}

TEST(Checkpoint, OpensAFileOrAnIndexByName) {
  TestFolder folder;
  MakeTiny(folder / "one");
  MakeTiny(folder / "many", 2000000);
  EXPECT_EQ(Checkpoint::Open(folder / "one" / "model.safetensors").num_files(), 1u);
  EXPECT_GT(Checkpoint::Open(folder / "many" / "model.safetensors.index.json").num_files(), 4u);
}

TEST(Checkpoint, OtherSafetensorsBesideItAreIgnored) {
  TestFolder folder;
  MakeTiny(folder.path());
  SafetensorsWriter writer(folder / "golden.safetensors", {{"prompt_0.logits", DType::kU8, {4}}});
  writer.LeaveZero(0);
  writer.Finish();
  WriteBytes(folder / "garbage.safetensors", "no");
  EXPECT_EQ(Checkpoint::Open(folder.path()).num_files(), 1u);
}

TEST(Inspect, ReleasedReportHasTheContractsKeys) {
  std::ostringstream out;
  InspectOptions options;
  options.config = ModelFolder("deepseek-v4.1-flash") / "config.json";
  options.json = true;
  Inspect(options, out, {});
  const Json report = ParseJson(out.str(), "report");
  EXPECT_EQ(report["total_bytes"], 510286023000);
  EXPECT_EQ(report["total_parameters"], 763205315794);
  EXPECT_EQ(report["kv_bytes_per_token"], 890);
  EXPECT_EQ(report["window_bytes_per_sequence"], 2703360);
  EXPECT_EQ(report["page_bytes"], 113920);
  ASSERT_EQ(report["groups"].size(), 14u);
  EXPECT_EQ(report["groups"][0], (Json{{"name", "routed experts"}, {"tensors", 92160}, {"bytes", 288777830400}}));
  ASSERT_EQ(report["layers"].size(), 40u);
  EXPECT_EQ(report["layers"][0]["kv_source"], nullptr);
  EXPECT_EQ(report["layers"][0]["mode"], "window");
  EXPECT_EQ(report["layers"][26]["ratio"], 1);
  EXPECT_EQ(report["layers"][26]["kv_source"], 20);
  EXPECT_EQ(report["layers"][26]["index_source"], 24);
  EXPECT_EQ(report["layers"][26]["mode"], "reuse");
  EXPECT_EQ(report["engram"]["layers"], (Json{1, 14}));
  EXPECT_EQ(report["engram"]["multipliers"][1][3], "82619226485591");
  EXPECT_EQ(report["engram"]["primes"][0].size(), 24u);
  EXPECT_EQ(report["engram"]["offsets"][0][1], 16000057);
}

TEST(Inspect, ValidatesAndScansAFolder) {
  TestFolder folder;
  MakeTiny(folder.path());
  std::ostringstream out;
  InspectOptions options;
  options.model = folder.path();
  options.scan = true;
  options.threads = 2;
  uint64_t last = 0, calls = 0;
  Inspect(options, out, [&](const Progress& progress) {
    EXPECT_GE(progress.done, last);
    last = progress.done;
    ++calls;
    EXPECT_LE(progress.done, progress.total);
  });
  EXPECT_GT(calls, 100u);
  EXPECT_EQ(last, Checkpoint::Open(folder.path()).total_bytes());
  EXPECT_THAT(out.str(), ::testing::AllOf(::testing::HasSubstr("1490 tensors in 1 files"),
                                          ::testing::HasSubstr("every value is finite"),
                                          ::testing::HasSubstr("candidate source")));
}

TEST(Inspect, NamesThePathThatWasGiven) {
  TestFolder folder;
  WriteBytes(folder / "model.safetensors", "");
  const auto refusal = [](const std::filesystem::path& model) {
    std::ostringstream out;
    InspectOptions options;
    options.model = model;
    return Refusal([&] { Inspect(options, out, {}); });
  };
  EXPECT_EQ(refusal("nope"), "not_found: nope: no such file or folder");
  EXPECT_THAT(refusal(folder.path()), ::testing::HasSubstr(folder.path().string() + ": no config.json in it"));
  EXPECT_THAT(refusal(folder / "model.safetensors"),
              ::testing::HasSubstr("model.safetensors: no config.json beside it"));
}

TEST(Inspect, FlagsThatMakeNoSenseAreRefused) {
  std::ostringstream out;
  EXPECT_THAT(Refusal([&] { Inspect({}, out, {}); }), ::testing::HasSubstr("--config"));
  InspectOptions scan;
  scan.config = ModelFolder("tiny") / "config.json";
  scan.scan = true;
  EXPECT_THAT(Refusal([&] { Inspect(scan, out, {}); }), ::testing::HasSubstr("--scan"));
  scan.scan = false;
  scan.block_size = 100;
  EXPECT_THAT(Refusal([&] { Inspect(scan, out, {}); }), ::testing::HasSubstr("--block-size"));
}

}  // namespace
}  // namespace senko::checkpoint
