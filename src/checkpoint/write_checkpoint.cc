#include "checkpoint/write_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "tensor/buffer.h"

namespace senko::checkpoint {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

using Shard = std::vector<size_t>;  // indices of tensors

std::vector<Shard> PlanShards(const std::vector<ExpectedTensor>& tensors, uint64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = static_cast<uint64_t>(BytesOf(tensors[i]));
    if (max_shard_bytes != 0 && !shards.back().empty() && filled + bytes > max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  return shards;
}

std::string ShardName(size_t shard, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", shard + 1, count);
  return name;
}

bool IsHole(const ExpectedTensor& tensor, const WriteOptions& options) {
  return options.sparse_engram && tensor.group == TensorGroup::kEngramTables;
}

class Meter {
 public:
  Meter(const ProgressSink& sink, uint64_t total) : sink_(sink), total_(total) {}
  void Add(uint64_t bytes) {
    if (!sink_) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (done_ - shown_ < (uint64_t{16} << 20) && done_ != total_) return;
    shown_ = done_;
    sink_({"writing weights", done_, total_, "bytes"});
  }

 private:
  const ProgressSink& sink_;
  uint64_t total_, done_ = 0, shown_ = 0;
  std::mutex mutex_;
};

struct Chunk {
  size_t slot = 0;  // of the shard's tensors
  uint64_t offset = 0;
};

void WriteShard(OutputFolder* folder, const std::string& name, const std::vector<ExpectedTensor>& tensors,
                const Shard& shard, const WriteOptions& options, const TensorFiller& fill, ThreadPool* pool,
                std::vector<Buffer<std::byte>>* scratch, Meter* meter) {
  std::vector<TensorSpec> specs;
  for (size_t i : shard) specs.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape});
  SafetensorsWriter writer(folder->path() / name, std::move(specs), {{"format", "pt"}});
  std::vector<Chunk> chunks;
  for (size_t slot = 0; slot < shard.size(); ++slot) {
    if (IsHole(tensors[shard[slot]], options)) {
      writer.LeaveZero(slot);
      continue;
    }
    for (uint64_t at = 0; at < writer.tensor_bytes(slot); at += kChunkBytes) chunks.push_back({slot, at});
  }
  pool->ParallelFor(static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = chunks[static_cast<size_t>(i)];
      const uint64_t size = std::min(kChunkBytes, writer.tensor_bytes(chunk.slot) - chunk.offset);
      const auto bytes = (*scratch)[static_cast<size_t>(thread)].span().first(size);
      fill(tensors[shard[chunk.slot]], chunk.offset, bytes);
      writer.Write(chunk.slot, chunk.offset, bytes);
      meter->Add(size);
    }
  });
  writer.Finish();
  folder->Add(name);
}

}  // namespace

void WriteCheckpoint(OutputFolder* folder, const std::vector<ExpectedTensor>& tensors, const WriteOptions& options,
                     const TensorFiller& fill, ThreadPool* pool, const ProgressSink& progress) {
  uint64_t total = 0, on_disk = 0;
  for (const ExpectedTensor& tensor : tensors) {
    total += static_cast<uint64_t>(BytesOf(tensor));
    if (!IsHole(tensor, options)) on_disk += static_cast<uint64_t>(BytesOf(tensor));
  }
  std::error_code ignored;
  const auto space = std::filesystem::space(folder->path(), ignored);
  if (!ignored && space.available < on_disk) {
    throw Error(ErrorCode::kResourceExhausted, folder->path().string() + ": the checkpoint needs " +
                                                   std::to_string(on_disk) + " bytes, the disk has " +
                                                   std::to_string(space.available) + " free");
  }
  std::vector<Buffer<std::byte>> scratch;
  for (int i = 0; i < pool->size(); ++i) scratch.emplace_back(kChunkBytes);
  Meter meter(progress, on_disk);
  const std::vector<Shard> shards = PlanShards(tensors, options.max_shard_bytes);
  if (options.max_shard_bytes == 0) {
    WriteShard(folder, "model.safetensors", tensors, shards[0], options, fill, pool, &scratch, &meter);
    return;
  }
  ShardIndex index;
  index.total_size = total;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = ShardName(s, shards.size());
    WriteShard(folder, name, tensors, shards[s], options, fill, pool, &scratch, &meter);
    for (size_t i : shards[s]) index.weight_map.emplace_back(tensors[i].name, name);
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  WriteShardIndex(folder->path() / kIndexName, index);
  folder->Add(kIndexName);
}

}  // namespace senko::checkpoint
