// Storage types of tensors, with the names safetensors gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace senko {

enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kF8E8M0, kI8, kU8, kI32, kI64, kF64 };

// Bytes per stored element. An I8 tensor that packs FP4 pairs counts bytes, as the file does.
constexpr size_t SizeOf(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    default:
      return 1;
  }
}

// "F32", "BF16", "F8_E4M3", ...
std::string_view DTypeName(DType type);
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace senko
