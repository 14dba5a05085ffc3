#include "checkpoint/inventory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

namespace senko::checkpoint {
namespace {

config::ModelConfig Load(const char* name) {
  return config::LoadModelConfig(std::filesystem::path(SENKO_SOURCE_DIR) / "models" / name);
}

// The byte-exact audit of model.md section 2.
TEST(Inventory, ReleasedTotals) {
  const auto tensors = ExpectedTensors(Load("deepseek-v4.1-flash"));
  int64_t bytes = 0, parameters = 0, f32 = 0, bf16 = 0, mtp = 0;
  for (const ExpectedTensor& tensor : tensors) {
    bytes += BytesOf(tensor);
    parameters += ParametersOf(tensor);
    if (tensor.dtype == DType::kF32) f32 += BytesOf(tensor) / 4;
    if (tensor.dtype == DType::kBF16) bf16 += BytesOf(tensor) / 2;
    mtp += tensor.name.starts_with("mtp.");
  }
  EXPECT_EQ(bytes, 510286023000);
  EXPECT_EQ(parameters, 763205315794);
  EXPECT_EQ(f32, 42307282);
  EXPECT_EQ(bf16, 1976441856);
  EXPECT_EQ(mtp, 2401);
}

TEST(Inventory, ReleasedBytesPerGroup) {
  const std::map<std::string_view, int64_t> expected = {{"routed experts", 288777830400},
                                                        {"Engram tables", 202758032400},
                                                        {"mtp routed experts", 7219445760},
                                                        {"attention FP8 matrices", 5069568000},
                                                        {"embed + head", 2647654400},
                                                        {"shared experts", 1416960000},
                                                        {"vision + aligner + image_*", 970536960},
                                                        {"mtp non-expert", 713428872},
                                                        {"Engram wkv + q/k weights", 314880000 + 163840},
                                                        {"router weights + biases", 157409280},
                                                        {"mHC parameters", 157295040},
                                                        {"indexers", 45130752},
                                                        {"compressors", 36704256},
                                                        {"norms + sinks", 983040}};
  std::map<std::string_view, int64_t> found;
  for (const GroupTotal& total : GroupTotals(ExpectedTensors(Load("deepseek-v4.1-flash")))) {
    found[GroupName(total.group)] = total.bytes;
  }
  EXPECT_EQ(found, expected);
}

TEST(Inventory, NamesAreUniqueAndPartsOptional) {
  for (const char* name : {"deepseek-v4.1-flash", "tiny", "slim"}) {
    std::map<std::string, int> seen;
    for (const ExpectedTensor& tensor : ExpectedTensors(Load(name))) EXPECT_EQ(seen[tensor.name]++, 0) << tensor.name;
    EXPECT_EQ(seen.contains("layers.0.attn.compressor.wkv.weight"), false);
    EXPECT_EQ(seen.contains("mtp.0.main_proj.weight"), std::string_view(name) != "slim");
    EXPECT_EQ(seen.contains("vision.norm.weight"), std::string_view(name) != "slim");
  }
}

}  // namespace
}  // namespace senko::checkpoint
