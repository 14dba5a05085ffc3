#include "engram/tables.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/check.h"
#include "base/error.h"

namespace senko::engram {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

const uint8_t* Bind(const checkpoint::Checkpoint& checkpoint, const std::string& name, DType dtype,
                    const std::vector<int64_t>& shape) {
  const checkpoint::TensorRef& tensor = checkpoint.At(name);
  if (tensor.dtype != dtype || tensor.shape != shape) {
    throw Error(ErrorCode::kCorrupt, checkpoint.file_path(tensor.file).string() + ": tensor " + name + " is " +
                                         std::string(DTypeName(tensor.dtype)) + " " + ShapeText(tensor.shape) +
                                         ", the configuration asks for " + std::string(DTypeName(dtype)) + " " +
                                         ShapeText(shape));
  }
  checkpoint.Advise(tensor, AccessPattern::kRandom);
  return reinterpret_cast<const uint8_t*>(tensor.bytes.data());
}

// A table this small stays in the page cache once it has been read; advice, two calls a row, would cost more than it
// saves.
constexpr int64_t kSmallTableBytes = int64_t{256} << 20;

void AdviseWillNeed(const uint8_t* begin, int64_t bytes) {
  static const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(begin) / page * page;
  const uintptr_t to = reinterpret_cast<uintptr_t>(begin) + static_cast<uintptr_t>(bytes);
  (void)::madvise(reinterpret_cast<void*>(from), to - from,
                  MADV_WILLNEED);  // refusal costs time, nothing else
}

}  // namespace

Tables::Tables(const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config) {
  const config::EngramConfig& engram = config.engram;
  SENKO_CHECK(engram.rows.size() == engram.layers.size());
  for (size_t i = 0; i < engram.layers.size(); ++i) {
    const std::string prefix = "layers." + std::to_string(engram.layers[i]) + ".engram.embed.";
    ops::EngramTable table;
    table.rows = engram.rows[i];
    table.dim = engram.head_dim;
    table.values = Bind(checkpoint, prefix + "weight", DType::kF8E4M3, {table.rows, table.dim});
    table.scales = Bind(checkpoint, prefix + "scale", DType::kF8E8M0, {table.rows, table.dim / 32});
    tables_.push_back(table);
  }
}

void Tables::WillNeed(int64_t layer, std::span<const int64_t> rows) const {
  SENKO_CHECK(layer >= 0 && layer < size());
  const ops::EngramTable& table = (*this)[layer];
  const bool small = table.rows * table.dim < kSmallTableBytes;
  for (const int64_t row : rows) {
    SENKO_CHECK(row >= 0 && row < table.rows);
    if (small) continue;
    AdviseWillNeed(table.values + row * table.dim, table.dim);
    AdviseWillNeed(table.scales + row * (table.dim / 32), table.dim / 32);
  }
}

}  // namespace senko::engram
