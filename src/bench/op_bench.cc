#include "bench/op_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "bench/measure.h"

namespace senko::bench {
namespace {

bool OnGpu(const std::vector<OpResult>& results) { return !results.empty() && results[0].clock_hz > 0; }

std::string Bound(const OpResult& r) { return r.fraction_of_limit == 0 ? "" : r.memory_bound ? "memory" : "compute"; }

}  // namespace

void OpResult::SetLimit(double bytes_per_second, double flops_per_second) {
  const double memory = bytes / bytes_per_second, compute = flops / flops_per_second;
  memory_bound = memory > compute;
  fraction_of_limit = std::max(memory, compute) / seconds;
}

std::vector<OpResult> RunOpCases(const std::string& filter, const Machine& machine, ThreadPool& pool) {
  std::vector<OpResult> results;
  for (const OpCase& op : OpCases()) {
    if (op.name.find(filter) == std::string::npos) continue;
    const std::function<void()> work = op.prepare(pool);
    OpResult r;
    r.name = op.name;
    r.seconds = MedianSeconds(work);
    r.bytes = op.bytes;
    r.flops = op.flops;
    r.SetLimit(machine.read_bytes_per_second, machine.flops_per_second());
    results.push_back(std::move(r));
  }
  return results;
}

#ifndef SENKO_HAS_CUDA
std::vector<OpResult> RunGpuOpCases(const std::string&, const Machine&) {
  throw Error(ErrorCode::kUnsupported, "this build has no CUDA");
}
#endif

std::string ToText(const std::vector<OpResult>& results) {
  const bool gpu = OnGpu(results);
  const double giga = gpu ? 1e12 : 1e9;  // or tera
  std::string text = fmt::format("{:<{}} {:>11} {:>9} {:>9} {:>9} {:>8}", "operator", gpu ? 60 : 44, "us",
                                 gpu ? "TB/s" : "GB/s", gpu ? "TFLOP/s" : "GFLOP/s", "bound", "of limit");
  text += gpu ? fmt::format(" {:>6} {:>11}  {}\n", "MHz", "us", "baseline") : "\n";
  for (const OpResult& r : results) {
    text += fmt::format("{:<{}} {:>11.1f} {:>9.2f} {:>9.1f} {:>9} {:>7.0f}%", r.name, gpu ? 60 : 44, r.seconds * 1e6,
                        r.bytes / r.seconds / giga, r.flops / r.seconds / giga, Bound(r), 100 * r.fraction_of_limit);
    if (gpu) text += fmt::format(" {:>6.0f}", r.clock_hz / 1e6);
    if (!r.baseline.empty()) text += fmt::format(" {:>11.1f}  {}", r.baseline_seconds * 1e6, r.baseline);
    text += "\n";
  }
  return text;
}

Json ToJson(const std::vector<OpResult>& results) {
  Json list = Json::array();
  for (const OpResult& r : results) {
    Json json = {{"name", r.name}, {"seconds", r.seconds}, {"bytes", r.bytes}, {"flops", r.flops}};
    if (r.fraction_of_limit > 0) {
      json["bound"] = Bound(r);
      json["fraction_of_limit"] = r.fraction_of_limit;
    }
    if (r.clock_hz > 0) json["clock_hz"] = r.clock_hz;
    if (!r.baseline.empty()) json["baseline"] = {{"name", r.baseline}, {"seconds", r.baseline_seconds}};
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace senko::bench
