// Every way a checkpoint folder is known to break (missing, stale, renamed, doubled, hostile) gives one
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inspect.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/validate.h"
#include "checkpoint/write_checkpoint.h"

namespace senko::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BrokenShards : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeTiny(folder_.path(), 3000000);
    index_ = ParseShardIndex(ReadBytes(folder_ / kIndexName), "index");
  }
  std::string Open() {
    return Refusal([&] { Checkpoint::Open(folder_.path()); });
  }
  void SaveIndex() { WriteShardIndex(folder_ / kIndexName, index_); }
  const std::string& FileOf(const std::string& tensor) {
    for (auto& [name, file] : index_.weight_map) {
      if (name == tensor) return file;
    }
    throw std::runtime_error("no " + tensor);
  }
  std::string& Entry(const std::string& tensor) { return const_cast<std::string&>(FileOf(tensor)); }

  TestFolder folder_;
  ShardIndex index_;
};

TEST_F(BrokenShards, MissingShardsAreAllListed) {
  const std::string first = FileOf("embed.weight"), last = FileOf("image_end");
  fs::remove(folder_ / first);
  fs::remove(folder_ / last);
  EXPECT_THAT(Open(), AllOf(HasSubstr("not_found"), HasSubstr("missing files (2)"), HasSubstr(first), HasSubstr(last)));
}

TEST_F(BrokenShards, ARenamedShardIsMissingAndLeftOver) {
  const std::string name = FileOf("embed.weight");
  fs::rename(folder_ / name, folder_ / "model-99.safetensors");
  EXPECT_THAT(Open(), AllOf(HasSubstr("missing files (1)"), HasSubstr(name),
                            HasSubstr("files not listed in the index (1)"), HasSubstr("model-99.safetensors")));
}

TEST_F(BrokenShards, ACopyUnderAnotherNameIsADuplicate) {
  fs::copy(folder_ / FileOf("embed.weight"), folder_ / "extra.safetensors");
  EXPECT_THAT(Open(),
              AllOf(HasSubstr("duplicated tensors"), HasSubstr("embed.weight: also in the unlisted file extra")));
}

TEST_F(BrokenShards, TheSameTensorInTwoShards) {
  fs::copy(folder_ / FileOf("embed.weight"), folder_ / "copy.safetensors");
  index_.weight_map.emplace_back("another", "copy.safetensors");
  SaveIndex();
  EXPECT_THAT(Open(), AllOf(HasSubstr("duplicated tensors"), HasSubstr("embed.weight: in copy.safetensors and model-"),
                            HasSubstr("tensors listed but absent (1)"), HasSubstr("another: the index names copy")));
}

TEST_F(BrokenShards, AStaleIndexNamesTheWrongFile) {
  const std::string right = FileOf("embed.weight"), wrong = FileOf("image_end");
  ASSERT_NE(right, wrong);
  Entry("embed.weight") = wrong;
  SaveIndex();
  EXPECT_THAT(Open(), AllOf(HasSubstr("in another file than listed (1)"),
                            HasSubstr("embed.weight: the index names " + wrong + ", it is in " + right)));
}

TEST_F(BrokenShards, AStaleIndexMissesTensors) {
  std::erase_if(index_.weight_map, [](const auto& entry) { return entry.first.starts_with("layers.3.attn."); });
  SaveIndex();
  EXPECT_THAT(Open(), AllOf(HasSubstr("tensors not listed in the index (13)"), HasSubstr("layers.3.attn.wq_a.weight")));
}

TEST_F(BrokenShards, WrongTotalSize) {
  *index_.total_size += 1;
  SaveIndex();
  EXPECT_THAT(Open(), AllOf(HasSubstr("total_size is 11720771"), HasSubstr("11720770 bytes")));
}

TEST_F(BrokenShards, ATotalSizeThatIsNoSizeIsRefused) {
  const std::string sound = ReadBytes(folder_ / kIndexName), number = "11720770";
  const size_t at = sound.find(number);
  ASSERT_NE(at, std::string::npos);
  for (const char* bad : {"-1", "-1.0", "0.5", "-9223372036854775808", "\"11720770\"", "null", "true", "[1]", "{}"}) {
    WriteBytes(folder_ / kIndexName, std::string(sound).replace(at, number.size(), bad));
    EXPECT_THAT(Open(), AllOf(HasSubstr("corrupt"), HasSubstr(kIndexName), HasSubstr("metadata.total_size must be")))
        << bad;
  }
  WriteBytes(folder_ / kIndexName, std::string(sound).replace(at, number.size(), "11720770.0"));
  EXPECT_EQ(Open(), "accepted");
}

TEST_F(BrokenShards, ATruncatedShardIsNamedWithItsBytes) {
  const std::string name = FileOf("embed.weight");
  fs::resize_file(folder_ / name, fs::file_size(folder_ / name) - 5);
  EXPECT_THAT(Open(),
              AllOf(HasSubstr("corrupt"), HasSubstr("truncated (1)"), HasSubstr(name), HasSubstr("ends at byte")));
}

TEST_F(BrokenShards, EverythingWrongIsOneMessage) {
  const std::string name = FileOf("embed.weight");
  WriteBytes(folder_ / name, "short");
  fs::remove(folder_ / FileOf("image_end"));
  WriteBytes(folder_ / "model-old.safetensors", "old");
  EXPECT_THAT(Open(), AllOf(HasSubstr("unreadable files (1)"), HasSubstr("5 bytes; a safetensors file begins"),
                            HasSubstr("missing files (1)"), HasSubstr("files not listed in the index (1)")));
}

TEST_F(BrokenShards, NoIndexBesideShards) {
  fs::remove(folder_ / kIndexName);
  EXPECT_THAT(Open(), AllOf(HasSubstr("model files"), HasSubstr("but no model.safetensors.index.json")));
}

TEST_F(BrokenShards, HostileIndexes) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "invalid JSON at byte"},
      {"[]", "no \"weight_map\""},
      {"{}", "no \"weight_map\""},
      {"{\"weight_map\": 3}", "no \"weight_map\""},
      {"{\"weight_map\": {\"a\": 3}}", "tensor \"a\" must name a file"},
      {"{\"weight_map\": {\"a\": [\"f\"]}}", "tensor \"a\" must name a file"},
      {"{\"weight_map\": {\"a\": \"../../etc/passwd\"}}", "must be a plain file name"},
      {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "must be a plain file name"},
      {"{\"weight_map\": {\"a\": \"\"}}", "must be a plain file name"},
      {"{\"weight_map\": {\"a\": \"f\", \"a\": \"g\"}}", "tensor \"a\" twice"},
      {"{\"weight_map\": {\"a\": \"none.safetensors\"}}", "missing files (1)"},
  };
  for (const auto& [text, message] : cases) {
    WriteBytes(folder_ / kIndexName, text);
    EXPECT_THAT(Open(), HasSubstr(message)) << text;
  }
  WriteBytes(folder_ / kIndexName, std::string(100000, '['));
  EXPECT_THAT(Open(), HasSubstr("nested deeper"));
}

TEST(BrokenFolder, WithoutAModel) {
  TestFolder folder;
  EXPECT_THAT(Refusal([&] { Checkpoint::Open(folder.path()); }), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(Refusal([&] { Checkpoint::Open(folder / "none"); }), HasSubstr("not_found"));
}

TEST(Validate, ListsMissingUnexpectedMisshapedAndMistypedTogether) {
  config::ModelConfig config = config::LoadModelConfig(ModelFolder("tiny"));
  std::vector<ExpectedTensor> tensors = ExpectedTensors(config);
  std::erase_if(tensors, [](const ExpectedTensor& t) { return t.name.starts_with("layers.9.ffn.experts."); });
  for (ExpectedTensor& tensor : tensors) {
    if (tensor.name == "norm.weight") tensor.dtype = DType::kF16;
    if (tensor.name == "layers.0.attn.wq_a.weight") std::swap(tensor.shape[0], tensor.shape[1]);
    if (tensor.name == "layers.1.attn.wq_a.weight") tensor.name = "layers.1.attn.q_a_proj.weight";
    if (tensor.name == "vision.patch_embed.proj.weight") tensor.shape = {64, 3, 4, 4};  // allowed
  }
  TestFolder folder;
  ThreadPool pool(1);
  OutputFolder output(folder.path());
  WriteCheckpoint(&output, tensors, {}, [](auto&, uint64_t, auto out) { std::ranges::fill(out, std::byte{0}); }, &pool,
                  {});
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  const std::string message = Refusal([&] { ValidateCheckpoint(checkpoint, config); });
  EXPECT_THAT(message, AllOf(HasSubstr("missing tensors (97)"), HasSubstr("... and 47 more"),
                             HasSubstr("unexpected tensors (1)"), HasSubstr("layers.1.attn.q_a_proj.weight"),
                             HasSubstr("norm.weight in model.safetensors: is F16 [256], must be BF16 [256]"),
                             HasSubstr("is F8_E4M3 [256, 64], must be F8_E4M3 [64, 256]"), Not(HasSubstr("vision"))));
  EXPECT_LT(message.size(), 20000u);
}

TEST(Scan, FindsEveryBadValue) {
  TestFolder folder;
  MakeTiny(folder.path());
  std::string file = ReadBytes(folder / "model.safetensors");
  const SafetensorsFile whole = SafetensorsFile::Open(folder / "model.safetensors");
  const auto poke = [&](const char* tensor, size_t byte, const std::string& bytes) {
    const auto offset = whole.Tensor(tensor).bytes.data() - whole.mapping().bytes().data();
    file.replace(static_cast<size_t>(offset) + byte, bytes.size(), bytes);
  };
  poke("embed.weight", 2 * 77, std::string("\x80\x7F", 2));                // BF16 infinity
  poke("norm.weight", 2 * 5, std::string("\xC1\xFF", 2));                  // BF16 NaN
  poke("layers.2.attn.attn_sink", 4, std::string("\x00\x00\xC0\x7F", 4));  // F32 NaN
  poke("layers.2.attn.wq_a.weight", 9, "\xFF");                            // e4m3 NaN
  poke("layers.2.attn.wq_a.scale", 1, "\xFF");                             // ue8m0 NaN
  poke("layers.3.ffn.experts.2.w1.scale", 3, "\xF0");                      // 2^113
  TestFolder broken;
  fs::copy(folder / "config.json", broken / "config.json");
  WriteBytes(broken / "model.safetensors", file);
  InspectOptions options;
  options.model = broken.path();
  options.scan = true;
  options.threads = 2;
  std::ostringstream out;
  EXPECT_THAT(Refusal([&] { Inspect(options, out, {}); }),
              AllOf(HasSubstr("numerical"), HasSubstr("infinite values (1)"),
                    HasSubstr("embed.weight: 1, the first at element 77 (byte 154"), HasSubstr("NaN values (4)"),
                    HasSubstr("norm.weight: 1, the first at element 5"),
                    HasSubstr("layers.2.attn.attn_sink: 1, the first at element 1"),
                    HasSubstr("layers.2.attn.wq_a.weight: 1, the first at element 9"),
                    HasSubstr("layers.2.attn.wq_a.scale: 1, the first at element 1"),
                    HasSubstr("layers.3.ffn.experts.2.w1.scale: 1, the first at element 3")));
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace senko::checkpoint
