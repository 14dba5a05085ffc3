// Which rounding points are on (architecture.md section 6, `--numerics`).
#pragma once

namespace senko::numerics {

enum class NumericsMode {
  kFloat,      // float32 everywhere; only the KV and index quantisers, on unrounded values
  kModelNoAq,  // every bf16 rounding point of the model, no activation rounding in front of FP8/FP4 linears
  kModel,      // all of them: the function the model was trained as
};

constexpr bool RoundsToBf16(NumericsMode mode) { return mode != NumericsMode::kFloat; }
constexpr bool RoundsActivations(NumericsMode mode) { return mode == NumericsMode::kModel; }

}  // namespace senko::numerics
