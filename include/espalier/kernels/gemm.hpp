// A GEMM of two matrices, with all properties by which its algorithm is chosen.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "espalier/util/types.hpp"

namespace espalier {

/// A GEMM c[m,n] = sum over k of a b, as a matmul spec reads its operands. Strides in elements: a(i, p) is at
/// i * a_row + p * a_column, b(p, j) at p * b_row + j * b_column; c is row-major.
struct GemmShape {
  int64_t m, n, k;
  int64_t a_row, a_column, b_row, b_column;
  int64_t c_row;  ///< c's rows are dense
  /// Blocks of m rows: block i of a, b and c begin i * a_block, i * b_block and i * c_block elements after the first.
  /// If b_block is 0, all share b.
  int64_t blocks = 1, a_block = 0, c_block = 0, b_block = 0;
  auto operator<=>(const GemmShape&) const = default;
};

/// How many scales multiply an fp8 operand: none (it is not fp8), one, one per row of c for a and one per column for b,
/// or one for each 32 contracted elements of such a row or column (ops/block_scales.hpp).
enum class Scales : uint8_t { kNone, kTensor, kRow, kMx };

/// "none", "tensor", "row" or "mx", as the attribute `scales` of a matmul has them.
constexpr std::string_view Name(Scales scales) {
  constexpr std::string_view kNames[] = {"none", "tensor", "row", "mx"};
  return kNames[static_cast<size_t>(scales)];
}

/// `input` is the type of both operands, or only of a if operands have scales; sums are fp32.
struct Gemm {
  GemmShape shape;
  Dtype input, output;
  bool accumulate = false;  ///< c += a b
  bool bias = false;        ///< a vector of the output's type is added to every row before sums are rounded
  Scales scales = Scales::kNone;
  Dtype scaled_b = Dtype::kF32;  ///< the type of b if operands have scales
  Dtype TypeOfB() const { return scales == Scales::kNone ? input : scaled_b; }
  auto operator<=>(const Gemm&) const = default;
};

/// "4096 x 11008 x 4096, bf16 -> f32, a transposed, accumulating".
std::string ToString(const Gemm& gemm);

}  // namespace espalier
