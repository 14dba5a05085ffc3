// Random models of the golden configurations for the room's tests.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/make_model.h"

namespace senko::runtime {

// Each made once per run and removed at its end.
class ModelFolders {
 public:
  ModelFolders()
      : root_(std::filesystem::temp_directory_path() / ("senko_test_models_" + std::to_string(::getpid()))) {}
  ~ModelFolders() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  // window 0: the configuration's own.
  std::filesystem::path Get(const std::string& config_name, int64_t window = 0) {
    const std::filesystem::path folder = root_ / (config_name + "_" + std::to_string(window));
    if (std::filesystem::exists(folder)) return folder;
    checkpoint::MakeModelOptions make;
    make.config = std::filesystem::path(SENKO_SOURCE_DIR) / "tests/golden/configs" / (config_name + ".json");
    if (window > 0) {
      std::ifstream file(make.config);
      Json config = Json::parse(file);
      (config.contains("text_config") ? config["text_config"] : config)["sliding_window"] = window;
      std::filesystem::create_directories(root_);
      make.config = root_ / (config_name + "_" + std::to_string(window) + ".json");
      std::ofstream(make.config) << DumpJson(config);
    }
    make.out = folder;
    make.seed = 7;
    std::ostringstream summary;
    checkpoint::MakeModel(make, summary, {});
    return folder;
  }

 private:
  std::filesystem::path root_;
};

// Every operator's definition, for what is compared with an oracle bit for bit.
inline std::vector<std::string> ReferenceOps() {
  std::vector<std::string> choices;
  for (const char* op : {"linear", "round_activations", "rms_norm", "mhc_mix", "mhc_collapse", "mhc_expand",
                         "window_write", "compress", "entry_write", "key_write", "attention", "index_query", "select",
                         "router", "experts", "output_proj", "engram_gather", "engram_inject", "logits"}) {
    choices.push_back(std::string(op) + "=reference");
  }
  return choices;
}

// The same configuration with another window.
inline std::filesystem::path TestModelWithWindow(const std::string& config_name, int64_t window) {
  static ModelFolders folders;
  return folders.Get(config_name, window);
}

inline std::filesystem::path TestModel(const std::string& config_name) {
  static ModelFolders folders;
  return folders.Get(config_name);
}

}  // namespace senko::runtime
