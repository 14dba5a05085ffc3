#include "runtime/load.h"

#include <utility>

#include "base/error.h"
#include "base/user_cache.h"
#include "checkpoint/validate.h"
#include "text/engram_map.h"

namespace senko::runtime {
namespace {

// engram_map.json beside the checkpoint, or the map its tokenizer gives; empty without Engram layers.
std::vector<int32_t> LoadTokenMap(const std::filesystem::path& directory, const config::ModelConfig& config) {
  if (config.engram.layers.empty()) return {};
  const int32_t compressed = static_cast<int32_t>(config.engram.compressed_vocab_size);
  const std::filesystem::path map = directory / "engram_map.json";
  if (std::filesystem::exists(map)) {
    return text::ReadEngramMap(map, static_cast<int32_t>(config.vocab_size), compressed);
  }
  const std::filesystem::path tokenizer = directory / "tokenizer.json";
  if (!std::filesystem::exists(tokenizer)) {
    throw Error(ErrorCode::kNotFound, map.string() +
                                          ": the model has Engram layers, so it needs this file or a "
                                          "tokenizer.json to derive it from");
  }
  return text::LoadEngramMap(text::Tokenizer::FromFile(tokenizer), directory, UserCacheFolder(), compressed);
}

// Where there is neither map nor tokenizer, any map onto the compressed ids does.
std::vector<int32_t> DummyTokenMap(const std::filesystem::path& directory, const config::ModelConfig& config) {
  if (std::filesystem::exists(directory / "engram_map.json") || std::filesystem::exists(directory / "tokenizer.json")) {
    return LoadTokenMap(directory, config);
  }
  if (config.engram.layers.empty()) return {};
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(static_cast<int64_t>(i) % config.engram.compressed_vocab_size);
  }
  return map;
}

}  // namespace

numerics::NumericsMode ParseNumericsMode(const std::string& name) {
  if (name == "float") return numerics::NumericsMode::kFloat;
  if (name == "model") return numerics::NumericsMode::kModel;
  if (name == "model-noaq") return numerics::NumericsMode::kModelNoAq;
  throw Error(ErrorCode::kInvalidArgument, "--numerics " + name + ": must be float, model or model-noaq");
}

LoadedModel LoadModel(const LoadOptions& options) {
  const bool dummy = options.load_format == "dummy";
  if (!dummy && options.load_format != "auto") {
    throw Error(ErrorCode::kInvalidArgument, "--load-format " + options.load_format + ": must be auto or dummy");
  }
  LoadedModel loaded;
  loaded.directory = options.directory;
  loaded.config = config::LoadModelConfig(options.directory);
  if (!dummy) {
    loaded.checkpoint = std::make_unique<checkpoint::Checkpoint>(checkpoint::Checkpoint::Open(options.directory));
    checkpoint::ValidateCheckpoint(*loaded.checkpoint, loaded.config);
  }

  model::ModelOptions model_options;
  model_options.numerics = options.numerics;
  model_options.block_size = options.block_size;
  model_options.verify_rows = options.verify_rows;
  model_options.ops = ops::CpuOps();
  for (const std::string& choice : options.op_impl) {
    const size_t equals = choice.find('=');
    if (equals == std::string::npos) {
      throw Error(ErrorCode::kInvalidArgument, "--op-impl " + choice + ": expected OPERATOR=BACKEND");
    }
    ops::ChooseOp(model_options.ops, choice.substr(0, equals), choice.substr(equals + 1));
  }
  if (options.profile != nullptr) model_options.ops = ProfiledOps(model_options.ops, options.profile);
  loaded.model = dummy ? std::make_unique<model::Model>(loaded.config, DummyTokenMap(options.directory, loaded.config),
                                                        model_options)
                       : std::make_unique<model::Model>(*loaded.checkpoint, loaded.config,
                                                        LoadTokenMap(options.directory, loaded.config), model_options);
  return loaded;
}

}  // namespace senko::runtime
