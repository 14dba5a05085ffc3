#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>
#include <vector>

#include "checkpoint/test_folder.h"
#include "checkpoint/text_file.h"

namespace senko::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Safetensors, WriterAndReaderAgree) {
  TestFolder folder;
  std::mt19937_64 random(std::random_device{}());
  const std::vector<TensorSpec> specs = {
      {"bytes", DType::kU8, {3, 5}}, {"wide", DType::kI64, {7}},     {"empty", DType::kF32, {0, 4}},
      {"scalar", DType::kF32, {}},   {"half", DType::kBF16, {2, 3}}, {"name \"with\" \xE9\x96\x83", DType::kF64, {1}}};
  std::vector<std::string> data;
  {
    SafetensorsWriter writer(folder / "a.safetensors", specs, {{"format", "pt"}});
    for (size_t i = specs.size(); i-- > 0;) {  // any order, in two pieces
      std::string bytes(writer.tensor_bytes(i), '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      const auto span = std::as_bytes(std::span(bytes));
      writer.Write(i, bytes.size() / 2, span.subspan(bytes.size() / 2));
      writer.Write(i, 0, span.first(bytes.size() / 2));
      data.insert(data.begin(), bytes);
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "a.safetensors"));
    writer.Finish();
  }
  const SafetensorsFile file = SafetensorsFile::Open(folder / "a.safetensors");
  EXPECT_EQ(file.header().data_offset % 64, 0u);
  ASSERT_EQ(file.header().metadata.size(), 1u);
  EXPECT_EQ(file.header().metadata[0].second, "pt");
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorRef tensor = file.Tensor(specs[i].name);
    EXPECT_EQ(tensor.dtype, specs[i].dtype);
    EXPECT_EQ(tensor.shape, specs[i].shape);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()), data[i]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) % SizeOf(tensor.dtype), 0u) << specs[i].name;
  }
  EXPECT_THAT(Refusal([&] { file.Tensor("none"); }), AllOf(HasSubstr("not_found"), HasSubstr("no tensor \"none\"")));
}

TEST(Safetensors, AnAbandonedWriterLeavesNothing) {
  TestFolder folder;
  { SafetensorsWriter writer(folder / "a.safetensors", {{"t", DType::kU8, {9}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, OnlyARegularFileIsReplaced) {
  namespace fs = std::filesystem;
  TestFolder folder;
  fs::create_directory(folder / "directory");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  fs::create_symlink("nowhere", folder / "link");
  WriteBytes(folder / "file", "old");
  for (const char* name : {"directory", "fifo", "link"}) {
    const fs::file_type before = fs::symlink_status(folder / name).type();
    for (const bool text : {false, true}) {
      EXPECT_THAT(Refusal([&] {
                    if (text) return WriteTextFile(folder / name, "text");
                    SafetensorsWriter(folder / name, {{"t", DType::kU8, {0}}}).Finish();
                  }),
                  AllOf(HasSubstr("invalid_argument"), HasSubstr((folder / name).string() + ": exists")));
      EXPECT_EQ(fs::symlink_status(folder / name).type(), before) << name;
      EXPECT_FALSE(fs::exists((folder / name).string() + ".partial")) << name;
    }
  }
  SafetensorsWriter(folder / "file", {{"t", DType::kU8, {0}}}).Finish();
  EXPECT_EQ(SafetensorsFile::Open(folder / "file").header().entries.size(), 1u);
}

TEST(Safetensors, HolesTakeNoDisk) {
  TestFolder folder;
  SafetensorsWriter writer(folder / "a.safetensors", {{"t", DType::kU8, {int64_t{1} << 36}}});
  writer.LeaveZero(0);
  writer.Finish();
  EXPECT_GT(std::filesystem::file_size(folder / "a.safetensors"), uint64_t{1} << 36);
  const SafetensorsFile file = SafetensorsFile::Open(folder / "a.safetensors");
  EXPECT_EQ(static_cast<int>(file.Tensor("t").bytes[size_t{1} << 35]), 0);
}

struct Broken {
  const char* what;
  std::string bytes;
  std::string message;
};

std::string OneTensor(const std::string& fields, size_t data) {
  return RawSafetensors("{\"t\":{" + fields + "}}", data);
}

TEST(Safetensors, EveryBrokenFileIsRefusedByName) {
  const std::string good = "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]";
  std::string deep = "{\"t\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  std::string huge(8, '\xFF');
  const std::vector<Broken> cases = {
      {"empty", "", "0 bytes; a safetensors file begins with 8 bytes of header length"},
      {"short", "abc", "3 bytes"},
      {"huge header", huge, "header length 18446744073709551615 at byte 0"},
      {"header past the end", RawSafetensors("{}", 0).substr(0, 9), "header length 2 at byte 0 exceeds the file's 9"},
      {"not JSON", RawSafetensors("{\"t\":nonsense}", 0), "invalid JSON in the safetensors header at byte"},
      {"cut JSON", RawSafetensors("{\"t\":{", 0), "invalid JSON"},
      {"bad UTF-8", RawSafetensors("{\"\xFF\":{}}", 0), "invalid JSON"},
      {"a list", RawSafetensors("[]", 0), "a list where none belongs"},
      {"a number", RawSafetensors("7", 0), "a number where none belongs"},
      {"nothing", RawSafetensors("   ", 0), "invalid JSON"},
      {"deep", RawSafetensors(deep, 0), "a list where none belongs"},
      {"deep objects", RawSafetensors("{\"t\":{\"shape\":{\"a\":1}}}", 0), "an object where none belongs"},
      {"nested lists", OneTensor("\"shape\":[[2]]", 0), "a list where none belongs"},
      {"unknown field", OneTensor(good + ",\"stride\":[1]", 8), "unknown field \"stride\""},
      {"missing field", OneTensor("\"dtype\":\"F32\",\"shape\":[2]", 8), "t: dtype, shape or data_offsets is missing"},
      {"unknown dtype", OneTensor("\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]", 8), "dtype \"F4\""},
      {"two dtypes", OneTensor("\"dtype\":\"F32\"," + good, 8), "\"dtype\" stands twice"},
      {"two shapes", OneTensor("\"shape\":[2]," + good, 8), "\"shape\" stands twice"},
      {"two offsets", OneTensor("\"data_offsets\":[0,8]," + good, 8), "\"data_offsets\" stands twice"},
      {"negative dim", OneTensor("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]", 8), "negative number -2"},
      {"float dim", OneTensor("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]", 8), "the number 2.0"},
      {"huge dim", OneTensor("\"dtype\":\"F32\",\"shape\":[18446744073709551615],\"data_offsets\":[0,8]", 8),
       "out of range"},
      {"shape overflow", OneTensor("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]", 0),
       "t: shape [4294967296, 4294967296] is too large"},
      {"rank", OneTensor("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]", 4), "more than 8"},
      {"three offsets", OneTensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]", 8), "two numbers"},
      {"backward offsets", OneTensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]", 8),
       "data_offsets [8, 0] do not span the 8 bytes of F32 [2]"},
      {"wrong size", OneTensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]", 12),
       "do not span the 8 bytes"},
      {"truncated", OneTensor(good, 7), "t: ends at byte 70, the file has 69"},
      {"trailing", OneTensor(good, 10), "2 bytes after the last tensor, from byte 70"},
      {"twice", RawSafetensors("{\"t\":{" + good + "},\"t\":{" + good + "}}", 8), "the name \"t\" stands twice"},
      {"overlap",
       RawSafetensors("{\"a\":{" + good + "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12),
       "b: begins at byte"},
      {"hole",
       RawSafetensors("{\"a\":{" + good + "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16),
       "but the tensors before it end at byte"},
      {"metadata not text", RawSafetensors("{\"__metadata__\":{\"a\":1}}", 0), "a number where none belongs"},
      {"null", RawSafetensors("{\"t\":null}", 0), "null"},
  };
  TestFolder folder;
  for (const Broken& broken : cases) {
    WriteBytes(folder / "x.safetensors", broken.bytes);
    const std::string message = Refusal([&] { SafetensorsFile::Open(folder / "x.safetensors"); });
    EXPECT_THAT(message, AllOf(HasSubstr("corrupt"), HasSubstr("x.safetensors"), HasSubstr(broken.message)))
        << broken.what;
    EXPECT_LT(message.size(), 2000u) << broken.what;
  }
}

TEST(Safetensors, ListsEveryBrokenTensorAndStaysShort) {
  std::string header = "{";
  for (int i = 0; i < 5000; ++i) {
    if (i > 0) header += ",";
    header.append("\"t").append(std::to_string(i));
    header += "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}";
  }
  TestFolder folder;
  WriteBytes(folder / "x.safetensors", RawSafetensors(header + "}", 4));
  const std::string message = Refusal([&] { SafetensorsFile::Open(folder / "x.safetensors"); });
  EXPECT_THAT(message, AllOf(HasSubstr("broken tensors (5000)"), HasSubstr("t49:"), HasSubstr("... and 4950 more")));
  EXPECT_LT(message.size(), 20000u);
}

TEST(Safetensors, MissingFilesAndFoldersAreNamed) {
  TestFolder folder;
  EXPECT_THAT(Refusal([&] { SafetensorsFile::Open(folder / "none"); }),
              AllOf(HasSubstr("not_found"), HasSubstr("none")));
  EXPECT_THAT(Refusal([&] { SafetensorsFile::Open(folder.path()); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace senko::checkpoint
