// How the shapes of a call are read: rows and columns, GEMMs. No arithmetic on data.
#pragma once

#include "espalier/graph/columns.hpp"
#include "espalier/kernels/gemm.hpp"
#include "espalier/kernels/kernel_table.hpp"

namespace espalier {

/// Product of all extents but the last; 1 for a scalar.
inline int64_t RowsOf(const Tensor& x) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.shape.size(); ++d) rows *= x.shape[d];
  return rows;
}

/// The last extent; 1 for a scalar.
inline int64_t ColumnsOf(const Tensor& x) { return x.shape.empty() ? 1 : x.shape.back(); }

/// Global index of the first element along dim `d`; 0 where none is stated.
inline int64_t StartOf(const Tensor& x, size_t d) { return d < x.start.size() ? x.start[d] : 0; }

/// Neighbours in memory as one tensor with the rows of all of them. CHECKs that they are neighbours.
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

/// The operands of a matmul call: several weights, or the gradients of several, are one (attribute `columns`).
struct MatmulOperands {
  Tensor a, b, c;
  bool bias = false;
};
inline MatmulOperands MatmulOperandsOf(const KernelCall& call) {
  const size_t weights = ColumnsOf(*call.attributes).size(), inputs = call.inputs.size();
  if (weights == 0) return {call.inputs[0], call.inputs[1], call.outputs[0], inputs > 2};
  CHECK(inputs == 2 ? call.outputs.size() == weights : inputs == 1 + weights,
        "matmul of {} weights: {} inputs, {} outputs", weights, inputs, call.outputs.size());
  return {call.inputs[0], RowsOfAll(call.inputs.subspan(1)), RowsOfAll(call.outputs)};
}

/// The GEMM of a matmul call. CHECKs that spec, shapes and types agree: operands of one type, a bias and the output of
/// it too, or the output f32. A spec is an einsum: tokens times a weight as stored ("bsX,XY->bsY") or transposed
/// ("bsX,YX->bsY"), or tokens transposed times tokens ("bsX,bsY->XY"); X and Y are k and n in either order. The same
/// without "b" multiplies matrices.
inline Gemm GemmOf(const KernelCall& call) {
  const auto [a, b, c, bias] = MatmulOperandsOf(call);
  const std::string& spec = call.attributes->Text("spec");
  GemmShape p{};
  int64_t depth = 0;  // as b has it
  if (spec == "bsk,nk->bsn" || spec == "bsn,kn->bsk" || spec == "sk,nk->sn") {
    p = {RowsOf(a), RowsOf(b), ColumnsOf(a), ColumnsOf(a), 1, 1, ColumnsOf(b), RowsOf(b)};
    depth = ColumnsOf(b);
  } else if (spec == "bsn,nk->bsk" || spec == "bsk,kn->bsn" || spec == "sk,kn->sn") {
    p = {RowsOf(a), ColumnsOf(b), ColumnsOf(a), ColumnsOf(a), 1, ColumnsOf(b), 1, ColumnsOf(b)};
    depth = RowsOf(b);
  } else {
    CHECK(spec == "bsn,bsk->nk" || spec == "bsk,bsn->kn" || spec == "sk,sn->kn", "matmul: spec {} is unknown", spec);
    p = {ColumnsOf(a), ColumnsOf(b), RowsOf(a), 1, ColumnsOf(a), ColumnsOf(b), 1, ColumnsOf(b)};
    depth = RowsOf(b);
  }
  CHECK(depth == p.k, "matmul {}: {} and {}", spec, ToString(a.shape), ToString(b.shape));
  CHECK(Volume(c.shape) == p.m * p.n, "matmul {}: output {} is not {} x {}", spec, ToString(c.shape), p.m, p.n);
  CHECK(a.dtype == b.dtype && (a.dtype == c.dtype || c.dtype == Dtype::kF32), "matmul {}: {} by {} into {}", spec,
        Name(a.dtype), Name(b.dtype), Name(c.dtype));
  CHECK(!call.accumulate || (c.dtype == Dtype::kF32 && !bias), "matmul {}: only f32 accumulates, and without a bias",
        spec);
  CHECK(!bias || (call.inputs[2].dtype == a.dtype && call.inputs[2].dtype == c.dtype), "matmul {}: a bias of {}", spec,
        Name(call.inputs[2].dtype));
  p.blocks = call.blocks;
  p.a_block = call.input_stride_bytes / SizeOf(a.dtype);
  p.c_block = call.output_stride_bytes / SizeOf(c.dtype);
  return {p, a.dtype, c.dtype, call.accumulate, bias};
}

/// Row of a position in its table; CHECKs that the table has it.
inline int64_t CheckedRow(int32_t position, int64_t table_rows) {
  CHECK(position >= 0 && position < table_rows, "position {} of a table of {}", position, table_rows);
  return position;
}

}  // namespace espalier
