// Engram's tables as a GPU reads them: small ones in its own memory, large ones in host memory that it maps.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "cuda/device_buffer.h"
#include "model/model.h"
#include "ops/engram/engram_sm90.h"

namespace senko::runtime {

// Owns the tables' memory. Without Engram layers there are none.
class DeviceEngram {
 public:
  struct Table {
    ops::EngramHashSm90 hash;
    const uint8_t* values = nullptr;  // as the device addresses them
    const uint8_t* scales = nullptr;
    int64_t rows = 0;
  };

  // Copies every table: to device memory up to kDeviceBytes, else to huge pages that `pool`'s threads fill and that are
  // then registered. Of a model without a checkpoint the rows are random. Errors: kResourceExhausted naming the layer.
  DeviceEngram(const model::Model& model, ThreadPool& pool, const ProgressSink& progress);
  ~DeviceEngram();
  DeviceEngram(const DeviceEngram&) = delete;
  DeviceEngram& operator=(const DeviceEngram&) = delete;

  static constexpr int64_t kDeviceBytes = int64_t{64} << 20;
  // Of the device, and of the host, without making anything.
  static int64_t DeviceBytes(const model::Model& model);
  static int64_t HostBytes(const model::Model& model);

  const std::vector<Table>& tables() const { return tables_; }
  const int32_t* token_map() const { return token_map_.data(); }  // [vocab]
  int32_t pad() const { return pad_; }                            // compressed

 private:
  struct HostMemory {
    uint8_t* data = nullptr;
    size_t bytes = 0;
    bool registered = false;
  };
  uint8_t* TakeHost(size_t bytes, int64_t layer);

  std::vector<Table> tables_;
  std::vector<cuda::DeviceBuffer<uint8_t>> device_;
  std::vector<HostMemory> host_;
  cuda::DeviceBuffer<int32_t> token_map_;
  int32_t pad_ = 0;
};

}  // namespace senko::runtime
