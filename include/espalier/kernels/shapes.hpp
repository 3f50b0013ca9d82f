// Interprets the shapes of a call: rows and columns, GEMMs. No arithmetic on data.
#pragma once

#include "espalier/graph/columns.hpp"
#include "espalier/kernels/gemm.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/block_scales.hpp"
#include "espalier/ops/matmul_spec.hpp"

namespace espalier {

/// Product of all extents but the last; 1 for a scalar.
inline int64_t RowsOf(const Tensor& x) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.shape.size(); ++d) rows *= x.shape[d];
  return rows;
}

/// The last extent; 1 for a scalar.
inline int64_t ColumnsOf(const Tensor& x) { return x.shape.empty() ? 1 : x.shape.back(); }

/// The extents of a tensor as a matrix whose columns are the last `inner` dims.
struct MatrixExtents {
  int64_t rows = 1, columns = 1;
};
inline MatrixExtents MatrixOf(const Shape& shape, size_t inner) {
  MatrixExtents matrix;
  for (size_t d = 0; d < shape.size(); ++d) (d + inner < shape.size() ? matrix.rows : matrix.columns) *= shape[d];
  return matrix;
}

/// Global index of the first element along dim `d`; 0 where none is stated.
inline int64_t StartOf(const Tensor& x, size_t d) { return d < x.start.size() ? x.start[d] : 0; }

/// Tensors that are adjacent in memory as one tensor with the rows of all of them. CHECKs that they are adjacent.
inline Tensor RowsOfAll(std::span<const Tensor> tensors) {
  Tensor all = tensors[0];
  for (const Tensor& x : tensors.subspan(1)) {
    CHECK(x.dtype == all.dtype && ColumnsOf(x) == ColumnsOf(all), "{} {} beside {} {}", Name(x.dtype),
          ToString(x.shape), Name(all.dtype), ToString(all.shape));
    CHECK(x.data == nullptr || x.data == all.As<std::byte>() + Volume(all.shape) * SizeOf(all.dtype),
          "{} does not follow {} in memory", ToString(x.shape), ToString(all.shape));
    all.shape[0] += x.shape[0];
  }
  return all;
}

/// The operands of a matmul call: several weights, or the gradients of several, count as one (attribute `columns`).
struct MatmulOperands {
  Tensor a, b, c;
  bool bias = false;
};
inline MatmulOperands MatmulOperandsOf(const KernelCall& call) {
  const size_t weights = ColumnsOf(*call.attributes).size(), inputs = call.inputs.size();
  // Inputs are a, b, the bias, and two scales.
  if (weights == 0) return {call.inputs[0], call.inputs[1], call.outputs[0], inputs % 2 == 1};
  CHECK(inputs == 2 ? call.outputs.size() == weights : inputs == 1 + weights,
        "matmul of {} weights: {} inputs, {} outputs", weights, inputs, call.outputs.size());
  return {call.inputs[0], RowsOfAll(call.inputs.subspan(1)), RowsOfAll(call.outputs)};
}

/// The scales of a matmul call by the attribute `scales`.
inline Scales ScalesOf(const KernelCall& call) {
  const std::string_view name = call.attributes->TextOr("scales", Name(Scales::kNone));
  for (const Scales scales : {Scales::kNone, Scales::kTensor, Scales::kRow, Scales::kMx})
    if (name == Name(scales)) return scales;
  CHECK(false, "matmul: scales \"{}\"", name);
}

/// Elements of the scales of an operand with so many rows of c, or columns, and contracted elements.
inline int64_t ScaleCount(Scales scales, int64_t lines, int64_t depth) {
  return scales == Scales::kMx ? BlockScaleBytes(lines, depth) : scales == Scales::kRow ? lines : 1;
}

/// CHECKs the types of a GEMM's operands, and that fp8 ones have scales and are contiguous along the contracted dim.
inline void CheckTypes(const KernelCall& call, const Gemm& gemm) {
  const Dtype a = gemm.input, b = gemm.TypeOfB(), c = gemm.output;
  const size_t vectors = gemm.bias ? 3 : 2;
  if (gemm.scales == Scales::kNone) {
    CHECK(!IsFp8(a) && (a == c || c == Dtype::kF32), "matmul: {} by {} into {}", Name(a), Name(b), Name(c));
  } else {
    const GemmShape& s = gemm.shape;
    CHECK(IsFp8(a) && IsFp8(b) && !IsFp8(c), "matmul: {} by {} into {}, with scales", Name(a), Name(b), Name(c));
    CHECK(s.a_column == 1 && s.b_row == 1, "matmul: fp8 operands are contiguous along the contracted dim");
    const bool blocks = gemm.scales == Scales::kMx;
    CHECK(!blocks || s.k % kScaleBlock == 0, "matmul: {} contracted elements are no blocks of {}", s.k, kScaleBlock);
    const auto suit = [&](const Tensor& x, int64_t lines) {
      const int64_t count = ScaleCount(gemm.scales, lines, s.k);  // a rank with fewer rows than others has more
      return x.dtype == (blocks ? Dtype::kF8E8M0 : Dtype::kF32) &&
             (blocks ? Volume(x.shape) >= count : Volume(x.shape) == count);
    };
    CHECK(call.inputs.size() == vectors + 2 && suit(call.inputs[vectors], s.m) && suit(call.inputs[vectors + 1], s.n),
          "matmul: scales of {} x {}", s.m, s.n);
  }
  CHECK(!call.accumulate || (c == Dtype::kF32 && !gemm.bias), "matmul: only f32 accumulates, and without a bias");
  CHECK(!gemm.bias || call.inputs[2].dtype == c, "matmul: a bias of {} to {}", Name(call.inputs[2].dtype), Name(c));
}

/// The GEMM of a matmul call. CHECKs that spec, shapes and types agree: operands of one type, and a bias and output of
/// the same type, or an f32 output; or fp8 operands with scales.
inline Gemm GemmOf(const KernelCall& call) {
  const auto [a, b, c, bias] = MatmulOperandsOf(call);
  const MatmulSpec spec = MatmulSpecOf(*call.attributes);
  const bool matrices = spec.HasMatrices();
  const auto one_of = [&](const Shape& shape) { return matrices ? Shape(shape.begin() + 1, shape.end()) : shape; };
  const auto [a_rows, a_columns] = MatrixOf(one_of(a.shape), spec.InnerDims(spec.a));
  const auto [b_rows, b_columns] = MatrixOf(one_of(b.shape), spec.InnerDims(spec.b));
  const bool a_inner = spec.IsContracted(spec.a.back()), b_inner = spec.IsContracted(spec.b.back());
  const int64_t m = a_inner ? a_rows : a_columns, k = a_inner ? a_columns : a_rows;
  const int64_t n = b_inner ? b_rows : b_columns, depth = b_inner ? b_columns : b_rows;
  GemmShape p{m, n, k, a_inner ? k : 1, a_inner ? 1 : m, b_inner ? 1 : n, b_inner ? k : 1, n};
  CHECK(depth == k, "matmul {}: {} and {}", spec.Text(), ToString(a.shape), ToString(b.shape));
  const int64_t count = matrices ? a.shape[0] : 1;
  CHECK(!matrices || (b.shape.at(0) == count && call.blocks == 1), "matmul {}: {} and {} in {} blocks", spec.Text(),
        ToString(a.shape), ToString(b.shape), call.blocks);
  CHECK(Volume(c.shape) == count * m * n, "matmul {}: output {} is not {} x {}", spec.Text(), ToString(c.shape), m, n);
  p.blocks = matrices ? count : call.blocks;
  p.a_block = call.input_stride_bytes / SizeOf(a.dtype);
  p.c_block = call.output_stride_bytes / SizeOf(c.dtype);
  if (count != 1) p.a_block = m * k, p.b_block = k * n, p.c_block = m * n;
  const Scales scales = ScalesOf(call);
  const Gemm gemm{p, a.dtype, c.dtype, call.accumulate, bias, scales, scales == Scales::kNone ? Dtype::kF32 : b.dtype};
  CHECK(scales != Scales::kNone || a.dtype == b.dtype, "matmul {}: {} by {}", spec.Text(), Name(a.dtype),
        Name(b.dtype));
  CheckTypes(call, gemm);
  return gemm;
}

/// Row of a position in its table; CHECKs that the table has it.
inline int64_t CheckedRow(int32_t position, int64_t table_rows) {
  CHECK(position >= 0 && position < table_rows, "position {} of a table of {}", position, table_rows);
  return position;
}

}  // namespace espalier
