#include "bench/op_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/measure.h"

namespace senko::bench {

OpResult RunOpCase(const OpCase& op, const Machine& machine, ThreadPool& pool) {
  const std::function<void()> work = op.prepare(pool);
  OpResult result{op.name, MedianSeconds(work), op.bytes, op.flops, 0, false};
  const double memory = op.bytes / machine.read_bytes_per_second, compute = op.flops / machine.fma_flops_per_second;
  result.memory_bound = memory > compute;
  result.fraction_of_limit = std::max(memory, compute) / result.seconds;
  return result;
}

std::string ToText(const std::vector<OpResult>& results) {
  std::string text =
      fmt::format("{:<44} {:>11} {:>9} {:>9} {:>9} {:>8}\n", "operator", "us", "GB/s", "GFLOP/s", "bound", "of limit");
  for (const OpResult& r : results) {
    text += fmt::format("{:<44} {:>11.1f} {:>9.2f} {:>9.1f} {:>9} {:>7.0f}%\n", r.name, r.seconds * 1e6,
                        r.bytes / r.seconds / 1e9, r.flops / r.seconds / 1e9, r.memory_bound ? "memory" : "compute",
                        100 * r.fraction_of_limit);
  }
  return text;
}

Json ToJson(const std::vector<OpResult>& results) {
  Json list = Json::array();
  for (const OpResult& r : results) {
    list.push_back({{"name", r.name},
                    {"seconds", r.seconds},
                    {"bytes", r.bytes},
                    {"flops", r.flops},
                    {"bound", r.memory_bound ? "memory" : "compute"},
                    {"fraction_of_limit", r.fraction_of_limit}});
  }
  return list;
}

}  // namespace senko::bench
