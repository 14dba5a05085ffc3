#include "checkpoint/inspect.h"

#include <optional>

#include "base/error.h"
#include "base/thread_count.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"
#include "checkpoint/scan.h"
#include "checkpoint/validate.h"
#include "config/engram_hash.h"
#include "config/kv_layout.h"
#include "config/layer_schedule.h"

namespace senko::checkpoint {
namespace {

Json LayerReport(const config::LayerPlan& plan) {
  const auto source = [](int64_t layer) { return layer < 0 ? Json(nullptr) : Json(layer); };
  return {{"layer", plan.layer},
          {"ratio", plan.ratio},
          {"kv_source", source(plan.kv_source)},
          {"index_source", source(plan.index_source)},
          {"mode", config::LayerModeName(plan.mode)},
          {"candidate_source", plan.candidate_source},
          {"restricted_to_candidates", plan.restricted_to_candidates},
          {"engram", plan.engram_slot >= 0}};
}

Json EngramReport(const config::EngramConfig& engram) {
  Json report = {{"layers", engram.layers},
                 {"rows", engram.rows},
                 {"primes", Json::array()},
                 {"offsets", Json::array()},
                 {"multipliers", Json::array()}};
  if (engram.layers.empty()) return report;
  for (const config::EngramLayerHash& hash : config::MakeEngramHash(engram)) {
    report["primes"].push_back(hash.primes);
    report["offsets"].push_back(hash.offsets);
    Json multipliers = Json::array();  // strings: many JSON readers keep numbers as doubles
    for (uint64_t multiplier : hash.multipliers) multipliers.push_back(std::to_string(multiplier));
    report["multipliers"].push_back(multipliers);
  }
  return report;
}

// The configuration of a checkpoint folder or file. Messages name the path that was given: the one derived
// from it may be nothing the user has heard of.
std::filesystem::path ConfigOf(const std::filesystem::path& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(model, error);
  if (status.type() == fs::file_type::not_found)
    throw Error(ErrorCode::kNotFound, model.string() + ": no such file or folder");
  const bool folder = fs::is_directory(status);
  const fs::path config = (folder ? model : model.parent_path()) / "config.json";
  if (fs::status(config, error).type() == fs::file_type::not_found) {
    throw Error(ErrorCode::kNotFound, model.string() + ": no config.json " + (folder ? "in" : "beside") +
                                          " it; restore it or give --config FILE");
  }
  return config;
}

}  // namespace

Json ConfigReport(const config::ModelConfig& config, int64_t block_size) {
  const std::vector<ExpectedTensor> tensors = ExpectedTensors(config);
  int64_t bytes = 0, parameters = 0;
  for (const ExpectedTensor& tensor : tensors) {
    bytes += BytesOf(tensor);
    parameters += ParametersOf(tensor);
  }
  Json report = {{"total_bytes", bytes},
                 {"total_parameters", parameters},
                 {"total_tensors", tensors.size()},
                 {"kv_bytes_per_token", config::KvBytesPerToken(config)},
                 {"window_bytes_per_sequence", config::WindowBytesPerSequence(config)},
                 {"block_size", block_size},
                 {"page_bytes", config::MakePageLayout(config, block_size).page_bytes},
                 {"slot_bytes", config::MakeSlotLayout(config, 1).slot_bytes},
                 {"max_positions", config.max_positions},
                 {"groups", Json::array()},
                 {"layers", Json::array()}};
  for (const GroupTotal& total : GroupTotals(tensors)) {
    report["groups"].push_back({{"name", GroupName(total.group)}, {"tensors", total.tensors}, {"bytes", total.bytes}});
  }
  for (const config::LayerPlan& plan : config::MakeLayerSchedule(config)) report["layers"].push_back(LayerReport(plan));
  report["engram"] = EngramReport(config.engram);
  return report;
}

void Inspect(const InspectOptions& options, std::ostream& out, const ProgressSink& progress) {
  if (options.model.empty() && options.config.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "inspect: give a checkpoint folder or --config FILE");
  }
  if (options.scan && options.model.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "inspect: --scan reads weights, so it needs a checkpoint folder");
  }
  if (options.block_size != 64 && options.block_size != 128 && options.block_size != 256) {
    throw Error(ErrorCode::kInvalidArgument, "inspect: --block-size must be 64, 128 or 256");
  }
  const config::ModelConfig config =
      config::LoadModelConfig(options.config.empty() ? ConfigOf(options.model) : options.config);
  Json report = ConfigReport(config, options.block_size);
  if (!options.model.empty()) {
    const Checkpoint checkpoint = Checkpoint::Open(options.model);
    const std::vector<ExpectedTensor> expected = ExpectedTensors(config);
    ValidateCheckpoint(checkpoint, expected);
    if (options.scan) {
      ThreadPool pool(CheckedThreadCount(options.threads));
      ScanValues(checkpoint, expected, &pool, progress);
    }
    report["checkpoint"] = {{"path", options.model.string()},
                            {"files", checkpoint.num_files()},
                            {"tensors", checkpoint.tensors().size()},
                            {"bytes", checkpoint.total_bytes()},
                            {"values_scanned", options.scan}};
  }
  if (options.json) {
    out << DumpJson(report, 1) << "\n";
  } else {
    PrintReport(report, out);
  }
}

}  // namespace senko::checkpoint
