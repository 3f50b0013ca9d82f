// Our row-major GEMMs for a library that only knows column-major matrices: c' = b' a'. Pure, so that it is tested
// without a GPU.
#pragma once

#include "espalier/kernels/gemm.hpp"

namespace espalier::cuda {

/// A matrix in memory: element (i, j) at i + j * leading. `transposed`: the GEMM uses its transpose.
struct ColumnMajor {
  bool transposed;
  int64_t rows, columns, leading;
};

/// b' [n,k], the first operand. If an extent is 1, both strides may be 1: then the one whose columns are long enough
/// counts.
inline ColumnMajor FirstOperand(const GemmShape& s) {
  if (s.b_row == 1 && s.b_column >= s.k) return {true, s.k, s.n, s.b_column};
  return {false, s.n, s.k, s.b_row};
}

/// a' [k,m], the second.
inline ColumnMajor SecondOperand(const GemmShape& s) {
  if (s.a_column == 1 && s.a_row >= s.k) return {false, s.k, s.m, s.a_row};
  return {true, s.m, s.k, s.a_column};
}

/// c' [n,m].
inline ColumnMajor ResultOf(const GemmShape& s) { return {false, s.n, s.m, s.c_row}; }

}  // namespace espalier::cuda
