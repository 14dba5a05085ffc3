#include "checkpoint/make_model.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/thread_count.h"
#include "base/thread_pool.h"
#include "checkpoint/inventory.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/parrot.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/text_file.h"
#include "checkpoint/write_checkpoint.h"

namespace senko::checkpoint {
namespace {

namespace fs = std::filesystem;

// A folder that holds a model, or a part of one, is somebody's work: never written over.
void RefuseModelIn(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") || name == "config.json" || name == "tokenizer.json" ||
        name == "engram_map.json" || name == kIndexName) {
      throw Error(ErrorCode::kInvalidArgument,
                  folder.string() + ": already holds " + name + "; remove it or give another folder");
    }
  }
  if (error) throw Error(ErrorCode::kIo, folder.string() + ": cannot list the folder: " + error.message());
}

// Uniform in [0, bound) up to a bias of bound / 2^64.
int64_t DrawBelow(uint64_t key, uint64_t counter, int64_t bound) {
  const Philox draw = PhiloxDraw(key, counter, 1);
  const uint64_t word = draw.word[0] | (uint64_t{draw.word[1]} << 32);
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<int64_t>(static_cast<uint64_t>((Wide{word} * static_cast<uint64_t>(bound)) >> 64));
}

void WriteInto(OutputFolder* folder, const char* name, std::string_view text) {
  WriteTextFile(folder->path() / name, text);
  folder->Add(name);
}

std::string EngramMapText(const std::vector<int64_t>& map) {
  std::string text = "[";
  for (int64_t id : map) {
    if (text.size() > 1) text += ",";
    text += std::to_string(id);
  }
  return text + "]\n";
}

}  // namespace

std::vector<int64_t> RandomEngramMap(const config::ModelConfig& config, uint64_t seed) {
  const int64_t vocab = config.vocab_size, compressed = config.engram.compressed_vocab_size;
  const uint64_t key = NameKey(seed, "engram_map");
  std::vector<int64_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = vocab - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)],
              order[static_cast<size_t>(DrawBelow(key, static_cast<uint64_t>(i), i + 1))]);
  }
  std::vector<int64_t> map(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i) {
    map[static_cast<size_t>(order[static_cast<size_t>(i)])] =
        i < compressed ? i : DrawBelow(key, static_cast<uint64_t>(vocab + i), compressed);
  }
  const int64_t pad = config.engram.pad_token_id;
  if (map[static_cast<size_t>(pad)] == pad) {
    for (int64_t& other : map) {
      if (other == pad) continue;
      std::swap(other, map[static_cast<size_t>(pad)]);
      break;
    }
  }
  return map;
}

void MakeModel(const MakeModelOptions& options, std::ostream& out, const ProgressSink& progress) {
  const config::ModelConfig config = config::LoadModelConfig(options.config);
  const fs::path config_file = fs::is_directory(options.config) ? options.config / "config.json" : options.config;
  const std::string config_text = ReadTextFile(config_file, size_t{1} << 20);
  const std::vector<ExpectedTensor> tensors = ExpectedTensors(config);
  TensorFiller fill = [&](const ExpectedTensor& tensor, uint64_t offset, std::span<std::byte> bytes) {
    FillRandom(tensor, options.seed, offset, bytes);
  };
  const fs::path tokenizer_file = config_file.parent_path() / "tokenizer.json";
  std::string tokenizer;
  if (options.parrot.empty() && fs::exists(tokenizer_file)) tokenizer = ReadTextFile(tokenizer_file, size_t{64} << 20);
  if (!options.parrot.empty()) {
    const ParrotPlan plan = PlanParrot(config, ReadTextFile(options.parrot, size_t{16} << 20), options.parrot.string());
    tokenizer = plan.tokenizer_json;
    fill = ParrotFiller(config, plan, options.seed);
  }
  ThreadPool pool(CheckedThreadCount(options.threads));
  OutputFolder folder(options.out);
  RefuseModelIn(options.out);
  WriteCheckpoint(&folder, tensors,
                  {.max_shard_bytes = options.max_shard_bytes, .sparse_engram = options.sparse_engram}, fill, &pool,
                  progress);
  if (!config.engram.layers.empty())
    WriteInto(&folder, "engram_map.json", EngramMapText(RandomEngramMap(config, options.seed)));
  if (!tokenizer.empty()) WriteInto(&folder, "tokenizer.json", tokenizer);
  WriteInto(&folder, "config.json", config_text);  // last: a folder with it is complete
  folder.Keep();
  int64_t bytes = 0;
  for (const ExpectedTensor& tensor : tensors) bytes += BytesOf(tensor);
  out << options.out.string() << ": " << tensors.size() << " tensors, " << bytes << " bytes, seed " << options.seed
      << "\n";
}

}  // namespace senko::checkpoint
