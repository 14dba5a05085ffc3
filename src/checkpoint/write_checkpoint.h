// Writes the tensors of an inventory as one file or as shards, from a function that makes their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/inventory.h"
#include "checkpoint/output_folder.h"

namespace senko::checkpoint {

// Fills bytes [offset, offset + out.size()) of a tensor. Called from several threads; offsets are multiples
// of 1 MiB.
using TensorFiller = std::function<void(const ExpectedTensor& tensor, uint64_t offset, std::span<std::byte> out)>;

struct WriteOptions {
  uint64_t max_shard_bytes = 0;  // 0: one file, model.safetensors; else shards and an index
  bool sparse_engram = false;    // Engram tables become holes: zeros that take no disk
};

// Memory is one chunk per thread, whatever the size of the checkpoint. `folder` holds no model files;
// each one written is added to it. Errors: kResourceExhausted (not enough disk, checked first), kIo.
void WriteCheckpoint(OutputFolder* folder, const std::vector<ExpectedTensor>& tensors, const WriteOptions& options,
                     const TensorFiller& fill, ThreadPool* pool, const ProgressSink& progress);

}  // namespace senko::checkpoint
