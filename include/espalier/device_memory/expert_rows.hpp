// How the cuda kernels of mixtures of experts split their work, and what they keep in the planned workspace. The memory
// plan and the kernels read the same formulas.
#pragma once

#include <algorithm>
#include <cstdint>

#include "espalier/device_memory/partial_sums.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// `dispatch` counts the slots of each expert in parts; a slot is a token's i-th expert. The workspace has a count for
/// each part and expert, i32[parts,experts].
constexpr int64_t DispatchParts(int64_t slots) { return PartsOfSize(slots, 256, 64); }
constexpr int64_t DispatchBytes(int64_t slots, int64_t experts) { return DispatchParts(slots) * experts * 4; }

/// The numbers that `balance` keeps of a token's logits: their maximum, the log of their softmax's denominator, and the
/// factors of exp(logit - maximum) and of sigmoid(logit) in scores whose sum is 1.
struct RouterDenominators {
  float max, log_sum, softmax, sigmoid;
};
/// The workspace has the partial sums over the tokens of one sequence, then these of all tokens.
constexpr int64_t BalanceSumsBytes(int64_t tokens, int64_t experts) { return ColumnSumBytes(2, tokens, experts); }
constexpr int64_t BalanceBytes(int64_t batch, int64_t tokens, int64_t experts) {
  return (BalanceSumsBytes(tokens, experts) + 15) / 16 * 16 +
         batch * tokens * static_cast<int64_t>(sizeof(RouterDenominators));
}

/// Partial sums of the entropies of tokens, in fp64.
constexpr int64_t EntropyParts(int64_t tokens) { return PartsOfSize(tokens, 64, 1024); }
constexpr int64_t EntropyBytes(int64_t tokens) { return EntropyParts(tokens) * 8; }

/// Rows that follow one another and belong to one expert.
struct ExpertSpan {
  int32_t expert, first, rows;
};

/// Rows, and columns, of a tile of a grouped matmul. All rows of a tile belong to one expert.
constexpr int64_t GroupedTileSide(Dtype dtype) { return dtype == Dtype::kF32 ? 64 : 128; }
/// Tiles of any routing of `rows` rows, at most: every expert may have one tile that is not full.
constexpr int64_t GroupedTiles(int64_t rows, int64_t experts, Dtype dtype) {
  return rows / GroupedTileSide(dtype) + std::min(rows, experts);
}
/// The workspace has the span of each tile, or for a gradient of weights that of each expert.
constexpr int64_t GroupedMatmulBytes(int64_t spans) { return spans * static_cast<int64_t>(sizeof(ExpertSpan)); }

}  // namespace espalier
