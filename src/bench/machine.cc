#include "bench/machine.h"

#include <fmt/format.h>

#include <fstream>

#include "base/error.h"
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
  Machine machine;
  machine.name = CpuName();
  machine.threads = pool.size();
  machine.read_bytes_per_second = MeasureReadBandwidth(pool);
  machine.fma_flops_per_second = MeasureFmaPeak(pool);
  return machine;
}

Machine MeasureMachine(const std::string& device, ThreadPool& pool) {
  return device == "cuda" ? MeasureGpu() : MeasureMachine(pool);
}

#ifndef SENKO_HAS_CUDA
Machine MeasureGpu() { throw Error(ErrorCode::kUnsupported, "this build has no CUDA"); }
#endif

Json ToJson(const Machine& m) {
  if (m.gpu) {
    return {{"gpu", m.name},
            {"read_bytes_per_second", m.read_bytes_per_second},
            {"bf16_flops_per_second", m.bf16_flops_per_second}};
  }
  return {{"cpu", m.name},
          {"threads", m.threads},
          {"read_bytes_per_second", m.read_bytes_per_second},
          {"fma_flops_per_second", m.fma_flops_per_second}};
}

std::string ToText(const Machine& m) {
  if (m.gpu) {
    return fmt::format("{}: reads {:.2f} TB/s, bf16 {:.0f} TFLOP/s\n", m.name, m.read_bytes_per_second / 1e12,
                       m.bf16_flops_per_second / 1e12);
  }
  return fmt::format("{}, {} threads: reads {:.2f} GB/s, float32 FMA {:.1f} GFLOP/s\n", m.name, m.threads,
                     m.read_bytes_per_second / 1e9, m.fma_flops_per_second / 1e9);
}

}  // namespace senko::bench
