#include "runtime/cuda/device_engram.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "cuda/check.h"

namespace senko::runtime {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

int64_t TableBytes(const config::ModelConfig& config, size_t layer) {
  return config.engram.rows[layer] * (config.engram.head_dim + config.engram.head_dim / 32);
}

// `bytes` of `from`, or random codes and scales near one, by many threads: the first touch is what takes long.
void FillHost(uint8_t* to, const uint8_t* from, size_t bytes, bool scales, ThreadPool& pool) {
  const auto pieces = static_cast<int64_t>((bytes + kPieceBytes - 1) / kPieceBytes);
  pool.ParallelFor(pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const auto at = static_cast<size_t>(piece * kPieceBytes);
      const size_t count = std::min(bytes - at, static_cast<size_t>(kPieceBytes));
      if (from != nullptr) {
        std::memcpy(to + at, from + at, count);
      } else if (scales) {
        std::memset(to + at, 121, count);  // 2^-6, of codes between 1 and 2
      } else {
        uint64_t state = static_cast<uint64_t>(piece) * 0x9E3779B97F4A7C15u + 1;
        for (size_t i = 0; i < count; i += 8) {
          state ^= state << 13, state ^= state >> 7, state ^= state << 17;
          const uint64_t codes = (state & 0x8787878787878787u) | 0x3838383838383838u;
          std::memcpy(to + at + i, &codes, std::min<size_t>(8, count - i));
        }
      }
    }
  });
}

}  // namespace

int64_t DeviceEngram::DeviceBytes(const model::Model& model) {
  const config::ModelConfig& config = model.config();
  int64_t bytes = config.engram.layers.empty() ? 0 : config.vocab_size * 4;
  for (size_t i = 0; i < config.engram.layers.size(); ++i) {
    if (TableBytes(config, i) <= kDeviceBytes) bytes += TableBytes(config, i);
  }
  return bytes;
}

int64_t DeviceEngram::HostBytes(const model::Model& model) {
  int64_t bytes = 0;
  for (size_t i = 0; i < model.config().engram.layers.size(); ++i) {
    if (TableBytes(model.config(), i) > kDeviceBytes) bytes += TableBytes(model.config(), i);
  }
  return bytes;
}

uint8_t* DeviceEngram::TakeHost(size_t bytes, int64_t layer) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::kResourceExhausted, "the Engram table of layer " + std::to_string(layer) + ", " +
                                                   std::to_string(bytes) + " bytes of host memory: " + what);
  };
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) refuse("it cannot be mapped");
  host_.push_back({static_cast<uint8_t*>(data), bytes, false});
  ::madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<uint8_t*>(data);
}

DeviceEngram::DeviceEngram(const model::Model& model, ThreadPool& pool, const ProgressSink& progress) {
  const config::ModelConfig& config = model.config();
  if (config.engram.layers.empty()) return;
  const engram::Hasher& hasher = *model.hasher();
  std::vector<int32_t> map(static_cast<size_t>(hasher.token_map().size()));
  for (size_t i = 0; i < map.size(); ++i) map[i] = hasher.token_map()[static_cast<int32_t>(i)];
  token_map_ = cuda::DeviceBuffer<int32_t>(map.size());
  SENKO_CUDA(cudaMemcpy(token_map_.data(), map.data(), token_map_.bytes(), cudaMemcpyHostToDevice));
  pad_ = hasher.pad();

  for (size_t i = 0; i < config.engram.layers.size(); ++i) {
    const config::EngramLayerHash& host = hasher.layers()[i];
    Table table;
    table.rows = config.engram.rows[i];
    table.hash.max_ngram = static_cast<int32_t>(config.engram.max_ngram);
    table.hash.heads = static_cast<int32_t>(config.engram.num_heads);
    SENKO_CHECK(host.multipliers.size() <= ops::kMaxNgramSm90 && host.primes.size() <= ops::kMaxEngramSlotsSm90);
    std::copy(host.multipliers.begin(), host.multipliers.end(), table.hash.multipliers);
    std::copy(host.primes.begin(), host.primes.end(), table.hash.primes);
    std::copy(host.offsets.begin(), host.offsets.end(), table.hash.offsets);

    const auto values = static_cast<size_t>(table.rows * config.engram.head_dim), scales = values / 32;
    const ops::EngramTable* stored =
        model.engram_tables() != nullptr ? &(*model.engram_tables())[static_cast<int64_t>(i)] : nullptr;
    const uint8_t* from_values = stored != nullptr ? stored->values : nullptr;
    const uint8_t* from_scales = stored != nullptr ? stored->scales : nullptr;
    if (TableBytes(config, i) <= kDeviceBytes) {
      std::vector<uint8_t> both(values + scales);
      FillHost(both.data(), from_values, values, false, pool);
      FillHost(both.data() + values, from_scales, scales, true, pool);
      device_.emplace_back(both.size());
      SENKO_CUDA(cudaMemcpy(device_.back().data(), both.data(), both.size(), cudaMemcpyHostToDevice));
      table.values = device_.back().data();
    } else {
      uint8_t* data = TakeHost(values + scales, config.engram.layers[i]);
      FillHost(data, from_values, values, false, pool);
      FillHost(data + values, from_scales, scales, true, pool);
      SENKO_CUDA(cudaHostRegister(data, values + scales, cudaHostRegisterMapped));
      host_.back().registered = true;
      void* mapped = nullptr;
      SENKO_CUDA(cudaHostGetDevicePointer(&mapped, data, 0));
      table.values = static_cast<const uint8_t*>(mapped);
    }
    table.scales = table.values + values;
    tables_.push_back(table);
    if (progress) progress({"Engram tables", i + 1, config.engram.layers.size(), "layers"});
  }
}

DeviceEngram::~DeviceEngram() {
  for (const HostMemory& memory : host_) {
    if (memory.registered) cudaHostUnregister(memory.data);
    ::munmap(memory.data, memory.bytes);
  }
}

}  // namespace senko::runtime
