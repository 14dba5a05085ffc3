// Binding: every vector that is widened is held to be finite, since a NaN that only selects is seen by nobody later.
#include "model/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>

#include "base/error.h"
#include "checkpoint/inventory.h"
#include "checkpoint/make_model.h"
#include "checkpoint/safetensors.h"
#include "numerics/bf16.h"

namespace senko::model {
namespace {

using checkpoint::TensorRole;

// A random model of models/tiny, whose file a test may damage.
class BindWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("senko_weights_" + std::to_string(::getpid()));
    checkpoint::MakeModelOptions make;
    make.config = std::filesystem::path(SENKO_SOURCE_DIR) / "models/tiny";
    make.out = folder_;
    std::ostringstream summary;
    checkpoint::MakeModel(make, summary, {});
    config_ = config::LoadModelConfig(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path File() const { return folder_ / "model.safetensors"; }

  // Puts `value` in the place of an element and gives back the bytes that stood there.
  std::string Put(const checkpoint::ExpectedTensor& tensor, int64_t element, std::string value) {
    const auto file = checkpoint::SafetensorsFile::Open(File());
    std::streamoff at = 0;
    for (const auto& entry : file.header().entries) {
      if (entry.name != tensor.name) continue;
      at = static_cast<std::streamoff>(file.header().data_offset + entry.begin +
                                       static_cast<uint64_t>(element) * value.size());
    }
    std::fstream stream(File(), std::ios::in | std::ios::out | std::ios::binary);
    std::string before(value.size(), '\0');
    stream.seekg(at).read(before.data(), static_cast<std::streamsize>(before.size()));
    stream.seekp(at).write(value.data(), static_cast<std::streamsize>(value.size()));
    EXPECT_TRUE(stream.good());
    return before;
  }

  // "accepted", or the refusal with its code in front.
  std::string Bind() const {
    const auto checkpoint = checkpoint::Checkpoint::Open(folder_);
    try {
      BindWeights(checkpoint, config_);
    } catch (const Error& error) {
      return std::string(ErrorCodeName(error.code())) + ": " + error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder_;
  config::ModelConfig config_;
};

bool IsWidened(const checkpoint::ExpectedTensor& tensor) {
  if (!tensor.name.starts_with("layers.") && tensor.name != "norm.weight") return false;  // drafts, vision
  return tensor.role == TensorRole::kNorm || tensor.role == TensorRole::kGateBias || tensor.role == TensorRole::kSink ||
         tensor.role == TensorRole::kMixBase || tensor.role == TensorRole::kMixScale;
}

std::string Stored(DType type, float value) {
  const uint16_t half = numerics::FloatToBf16(value);
  std::string bytes(SizeOf(type), '\0');
  std::memcpy(bytes.data(), type == DType::kF32 ? static_cast<const void*>(&value) : &half, bytes.size());
  return bytes;
}

TEST_F(BindWeightsTest, EverySmallVectorMustBeFinite) {
  ASSERT_EQ(Bind(), "accepted");
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int vectors = 0;
  for (const checkpoint::ExpectedTensor& tensor : checkpoint::ExpectedTensors(config_)) {
    if (!IsWidened(tensor)) continue;
    ++vectors;
    int64_t count = 1;
    for (int64_t dim : tensor.shape) count *= dim;
    const int64_t element = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
    const float infinity = std::numeric_limits<float>::infinity();
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity};
    const float value = values[random() % 3];
    const std::string before = Put(tensor, element, Stored(tensor.dtype, value));
    EXPECT_EQ(Bind(), "numerical: " + File().string() + ": " + tensor.name + ": element " + std::to_string(element) +
                          " is " + (value == value ? "infinite" : "NaN") +
                          "; `senko inspect --scan` lists every such value");
    Put(tensor, element, before);
  }
  EXPECT_GT(vectors, 10 * 8);
  EXPECT_EQ(Bind(), "accepted");
}

}  // namespace
}  // namespace senko::model
