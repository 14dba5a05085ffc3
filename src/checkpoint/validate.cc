#include "checkpoint/validate.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/problem_list.h"

namespace senko::checkpoint {
namespace {

std::string Described(DType dtype, const std::vector<int64_t>& shape) {
  return std::string(DTypeName(dtype)) + " " + ShapeText(shape);
}

}  // namespace

void ValidateCheckpoint(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& expected) {
  ProblemList problems;
  std::vector<std::string_view> names;
  for (const ExpectedTensor& tensor : expected) {
    names.push_back(tensor.name);
    const TensorRef* found = checkpoint.Find(tensor.name);
    if (found == nullptr) {
      problems.Add("missing tensors", tensor.name + ": " + Described(tensor.dtype, tensor.shape));
      continue;
    }
    const std::string where = tensor.name + " in " + checkpoint.file_path(found->file).filename().string() + ": is " +
                              Described(found->dtype, found->shape) + ", must be " +
                              Described(tensor.dtype, tensor.shape);
    if (found->dtype != tensor.dtype) {
      problems.Add("tensors of the wrong type", where);
    } else if (found->shape != tensor.shape && (tensor.other_shape.empty() || found->shape != tensor.other_shape)) {
      problems.Add("tensors of the wrong shape", where);
    }
  }
  std::sort(names.begin(), names.end());
  for (const TensorRef& tensor : checkpoint.tensors()) {
    if (std::binary_search(names.begin(), names.end(), std::string_view(tensor.name))) continue;
    problems.Add("unexpected tensors",
                 Printable(tensor.name) + " in " + checkpoint.file_path(tensor.file).filename().string());
  }
  problems.ThrowIfAny(ErrorCode::kCorrupt, checkpoint.directory().string(), "the tensors do not match config.json");
}

void ValidateCheckpoint(const Checkpoint& checkpoint, const config::ModelConfig& config) {
  ValidateCheckpoint(checkpoint, ExpectedTensors(config));
}

}  // namespace senko::checkpoint
