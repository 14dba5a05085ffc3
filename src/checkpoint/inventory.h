// The tensors a checkpoint of a given configuration holds (model.md section 2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "tensor/dtype.h"

namespace senko::checkpoint {

// The rows of model.md's table "bytes per group".
enum class TensorGroup {
  kRoutedExperts,
  kEngramTables,
  kMtpExperts,
  kAttention,
  kEmbedAndHead,
  kSharedExperts,
  kVision,
  kMtpOther,
  kEngramProjections,
  kRouter,
  kHyperConnections,
  kIndexers,
  kCompressors,
  kNormsAndSinks,
};
inline constexpr int kNumGroups = 14;
std::string_view GroupName(TensorGroup group);

// What a tensor is for: decides how random weights fill it and how a scan reads it.
enum class TensorRole {
  kFp8Weight,    // F8_E4M3 [out, in], 32x32 tiles; its scale follows
  kFp8Scale,     // F8_E8M0 [out/32, in/32]
  kFp4Weight,    // I8 [out, in/2], two codes a byte; its scale follows
  kFp4Scale,     // F8_E8M0 [out, in/32]
  kTable,        // F8_E4M3 [rows, dim]; its scale follows
  kTableScale,   // F8_E8M0 [rows, dim/32]
  kBf16Weight,   // BF16 [out, in]
  kEmbedding,    // BF16 [vocab, dim], or a vector that stands for a token
  kHead,         // BF16 [vocab, dim]
  kNorm,         // BF16 multiplier near 1
  kBias,         // BF16
  kGateBias,     // F32 [experts]
  kSink,         // F32 [heads]
  kMixFunction,  // F32 [(2+hc)hc, hc*D]
  kMixBase,      // F32 [(2+hc)hc]
  kMixScale,     // F32 [3]
};

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  TensorGroup group = TensorGroup::kAttention;
  TensorRole role = TensorRole::kBf16Weight;
  int64_t fan_in = 1;                // inputs summed by each output; of the weight, for a scale
  std::vector<int64_t> other_shape;  // a second accepted shape of the same bytes, or empty
};

// Every tensor: embedding, layers, head, vision, drafts. Sizes are those of a validated configuration.
std::vector<ExpectedTensor> ExpectedTensors(const config::ModelConfig& config);

// Stored bytes.
int64_t BytesOf(const ExpectedTensor& tensor);
// Parameters: FP4 counted unpacked, scales not counted.
int64_t ParametersOf(const ExpectedTensor& tensor);

struct GroupTotal {
  TensorGroup group;
  int64_t tensors = 0;
  int64_t bytes = 0;
};
// One per group that has tensors, in the table's order.
std::vector<GroupTotal> GroupTotals(const std::vector<ExpectedTensor>& tensors);

}  // namespace senko::checkpoint
