#include "text/engram_map.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "text/engram_fold.h"

namespace senko::text {
namespace {

constexpr size_t kMaxMapBytes = size_t{64} << 20;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int kFormat = 1;  // part of the cached file's name; raised when the way the map is made changes

std::string KeyOf(const Tokenizer& tokenizer, int32_t id) {
  std::string text = tokenizer.Decode(std::span(&id, 1), false);
  if (text.find(kReplacement) != std::string::npos) return std::string(tokenizer.TokenSpelling(id));
  std::string folded = EngramFold(text);
  return folded.empty() ? text : folded;
}

}  // namespace

std::vector<int32_t> MakeEngramMap(const Tokenizer& tokenizer) {
  std::vector<int32_t> map(tokenizer.vocab_size());
  std::unordered_map<std::string, int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    map[id] = ids.emplace(KeyOf(tokenizer, id), static_cast<int32_t>(ids.size())).first->second;
  }
  return map;
}

int32_t CompressedVocabSize(const std::vector<int32_t>& map) {
  return map.empty() ? 0 : *std::max_element(map.begin(), map.end()) + 1;
}

std::vector<int32_t> ReadEngramMap(const std::filesystem::path& path, int32_t vocab_size,
                                   int32_t compressed_vocab_size) {
  const Json json = ParseJson(ReadTextFile(path, kMaxMapBytes), path.string());
  const auto fail = [&](const std::string& what) { throw Error(ErrorCode::kCorrupt, path.string() + ": " + what); };
  if (!json.is_array() || json.size() != static_cast<size_t>(vocab_size)) {
    fail("must be a list of " + std::to_string(vocab_size) + " ids, one per token" +
         (json.is_array() ? "; it has " + std::to_string(json.size()) : ""));
  }
  std::vector<int32_t> map(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_number_unsigned() || json[i].get<uint64_t>() >= static_cast<uint64_t>(compressed_vocab_size)) {
      fail("entry " + std::to_string(i) + " must be an integer in [0, " + std::to_string(compressed_vocab_size) + ")");
    }
    map[i] = json[i].get<int32_t>();
  }
  return map;
}

void WriteEngramMap(const std::filesystem::path& path, const std::vector<int32_t>& map) {
  std::string text = "[";
  for (size_t i = 0; i < map.size(); ++i) {
    if (i != 0) text += ',';
    text += std::to_string(map[i]);
  }
  text += "]\n";
  // Two processes may write the same file at once; each renames its own whole copy into place.
  std::filesystem::path temporary = path;
  temporary += ".new-" + std::to_string(getpid());
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw Error(ErrorCode::kIo, path.string() + ": cannot be written" + (error ? ": " + error.message() : ""));
  }
}

std::vector<int32_t> LoadEngramMap(const Tokenizer& tokenizer, const std::filesystem::path& model_folder,
                                   const std::filesystem::path& cache_folder, int32_t compressed_vocab_size) {
  const std::filesystem::path beside = model_folder / "engram_map.json";
  if (std::filesystem::exists(beside)) return ReadEngramMap(beside, tokenizer.vocab_size(), compressed_vocab_size);

  const std::filesystem::path cached =
      cache_folder / ("engram_map-" + std::to_string(kFormat) + "-" + tokenizer.sha256() + ".json");
  if (!cache_folder.empty()) {
    try {
      return ReadEngramMap(cached, tokenizer.vocab_size(), compressed_vocab_size);
    } catch (const Error&) {
      // Absent, or damaged: it is made again and replaced.
    }
  }
  std::vector<int32_t> map = MakeEngramMap(tokenizer);
  if (CompressedVocabSize(map) != compressed_vocab_size) {
    throw Error(ErrorCode::kCorrupt,
                model_folder.string() + ": the tokenizer yields " + std::to_string(CompressedVocabSize(map)) +
                    " compressed tokens, but engram_compressed_vocab_size is " + std::to_string(compressed_vocab_size) +
                    "; put the model's own engram_map.json beside it");
  }
  if (!cache_folder.empty()) {
    try {
      std::error_code ignored;
      std::filesystem::create_directories(cache_folder, ignored);
      WriteEngramMap(cached, map);
    } catch (const Error&) {
      // Without a cache the next start takes a moment longer.
    }
  }
  return map;
}

}  // namespace senko::text
