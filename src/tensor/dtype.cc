#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace senko {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 10> kNames = {{{DType::kF32, "F32"},
                                                                        {DType::kBF16, "BF16"},
                                                                        {DType::kF16, "F16"},
                                                                        {DType::kF8E4M3, "F8_E4M3"},
                                                                        {DType::kF8E8M0, "F8_E8M0"},
                                                                        {DType::kI8, "I8"},
                                                                        {DType::kU8, "U8"},
                                                                        {DType::kI32, "I32"},
                                                                        {DType::kI64, "I64"},
                                                                        {DType::kF64, "F64"}}};

}  // namespace

std::string_view DTypeName(DType type) {
  for (const auto& [t, name] : kNames) {
    if (t == type) return name;
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& [t, n] : kNames) {
    if (n == name) return t;
  }
  return std::nullopt;
}

}  // namespace senko
