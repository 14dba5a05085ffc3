// The Engram token compression map: token id -> compressed id (model.md 3.7, 11.12).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "text/tokenizer.h"

namespace senko::text {

// One compressed id per token, [vocab_size]. Tokens whose folded texts are equal share an id; ids are given
// in order of first appearance, so they are 0 .. max without holes. Deterministic: depends on the tokenizer
// file alone.
std::vector<int32_t> MakeEngramMap(const Tokenizer& tokenizer);

// max + 1; 0 for an empty map.
int32_t CompressedVocabSize(const std::vector<int32_t>& map);

// Reads a JSON array of `vocab_size` ids, each in [0, compressed_vocab_size).
// Errors: kNotFound, kIo, kCorrupt (naming file and entry), kResourceExhausted.
std::vector<int32_t> ReadEngramMap(const std::filesystem::path& path, int32_t vocab_size,
                                   int32_t compressed_vocab_size);

// Writes the same format; the file appears whole or not at all. Errors: kIo.
void WriteEngramMap(const std::filesystem::path& path, const std::vector<int32_t>& map);

// The map of a model: `engram_map.json` in `model_folder` if it is there (it overrides), else the one cached
// under the tokenizer's SHA-256 in `cache_folder`, else a fresh one, which is then cached (an empty
// `cache_folder` caches nothing, and a folder that cannot be written is no error). Errors: as ReadEngramMap
// for the file beside the model; kCorrupt when a fresh map has not exactly `compressed_vocab_size` ids (the
// tokenizer is not the model's).
std::vector<int32_t> LoadEngramMap(const Tokenizer& tokenizer, const std::filesystem::path& model_folder,
                                   const std::filesystem::path& cache_folder, int32_t compressed_vocab_size);

}  // namespace senko::text
