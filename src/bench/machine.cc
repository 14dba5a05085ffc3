#include "bench/machine.h"

#include <fmt/format.h>

#include <fstream>

#include "tensor/machine_limits.h"

namespace senko::bench {
namespace {

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Machine MeasureMachine(ThreadPool& pool) {
  return {CpuName(), pool.size(), MeasureReadBandwidth(pool), MeasureFmaPeak(pool)};
}

Json ToJson(const Machine& m) {
  return {{"cpu", m.cpu},
          {"threads", m.threads},
          {"read_bytes_per_second", m.read_bytes_per_second},
          {"fma_flops_per_second", m.fma_flops_per_second}};
}

std::string ToText(const Machine& m) {
  return fmt::format("{}, {} threads: reads {:.2f} GB/s, float32 FMA {:.1f} GFLOP/s\n", m.cpu, m.threads,
                     m.read_bytes_per_second / 1e9, m.fma_flops_per_second / 1e9);
}

}  // namespace senko::bench
