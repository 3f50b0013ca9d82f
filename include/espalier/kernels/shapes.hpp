// How kernels read the shapes of a call: rows and columns, heads, boxes. Shared by the backends; no arithmetic on data.
#pragma once

#include <algorithm>
#include <cmath>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/kernels/product.hpp"
#include "espalier/mesh/zigzag.hpp"

namespace espalier {

/// Data of an input or output that a call may leave out; nullptr if it does.
template <typename T>
T* DataOrNull(std::span<const Tensor> tensors, size_t i) {
  return i < tensors.size() ? tensors[i].As<T>() : nullptr;
}

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

/// CHECKs that spec, shapes and types agree: operands of one type, a bias and the output of it too, or the output f32.
/// By its letters a spec is tokens times a weight as stored ("bsX,XY->bsY") or transposed
/// ("bsX,YX->bsY"), or tokens transposed times tokens ("bsX,bsY->XY"); X and Y are k and n in either order.
inline Product ProductOf(const KernelCall& call) {
  const Tensor& a = call.inputs[0];
  const Tensor& b = call.inputs[1];
  const bool bias = call.inputs.size() > 2;
  const std::string& spec = call.attributes->Text("spec");
  ProductShape p{};
  int64_t depth = 0;  // as b has it
  if (spec == "bsk,nk->bsn" || spec == "bsn,kn->bsk") {
    p = {RowsOf(a), RowsOf(b), ColumnsOf(a), ColumnsOf(a), 1, 1, ColumnsOf(b), RowsOf(b)};
    depth = ColumnsOf(b);
  } else if (spec == "bsn,nk->bsk" || spec == "bsk,kn->bsn") {
    p = {RowsOf(a), ColumnsOf(b), ColumnsOf(a), ColumnsOf(a), 1, ColumnsOf(b), 1, ColumnsOf(b)};
    depth = RowsOf(b);
  } else {
    CHECK(spec == "bsn,bsk->nk" || spec == "bsk,bsn->kn", "matmul: spec {} is unknown", spec);
    p = {ColumnsOf(a), ColumnsOf(b), RowsOf(a), 1, ColumnsOf(a), ColumnsOf(b), 1, ColumnsOf(b)};
    depth = RowsOf(b);
  }
  CHECK(depth == p.k, "matmul {}: {} and {}", spec, ToString(a.shape), ToString(b.shape));
  const Tensor& c = call.outputs[0];
  CHECK(Volume(c.shape) == p.m * p.n, "matmul {}: output {} is not {} x {}", spec, ToString(c.shape), p.m, p.n);
  CHECK(a.dtype == b.dtype && (a.dtype == c.dtype || c.dtype == Dtype::kF32), "matmul {}: {} by {} into {}", spec,
        Name(a.dtype), Name(b.dtype), Name(c.dtype));
  CHECK(!call.accumulate || (c.dtype == Dtype::kF32 && !bias), "matmul {}: only f32 accumulates, and without a bias",
        spec);
  CHECK(!bias || (call.inputs[2].dtype == a.dtype && call.inputs[2].dtype == c.dtype), "matmul {}: a bias of {}", spec,
        Name(call.inputs[2].dtype));
  return {p, a.dtype, c.dtype, call.accumulate, bias};
}

/// A local piece of a sequence: which position each of its rows holds (mesh/zigzag.hpp).
struct SequencePiece {
  int64_t start = 0;           ///< index of the first row in the sequence as it lies in memory
  int64_t length = 0, cp = 1;  ///< of the whole; cp = 1: rows lie in the order of their positions

  int64_t PositionOf(int64_t row) const { return ZigzagPosition(start + row, length, cp); }
};

/// The piece of dim 1 of a [b,s,...] tensor. Under context parallelism ops state `cp` and `length`; where keys travel
/// in a ring, `hop` says from how many members away these have come.
inline SequencePiece SequenceOf(const KernelCall& call, const Tensor& x, int64_t hop) {
  SequencePiece piece{StartOf(x, 1), 0, static_cast<int64_t>(call.attributes->NumberOr("cp", 1))};
  if (piece.cp == 1) return piece;
  piece.length = static_cast<int64_t>(call.attributes->Number("length"));
  const int64_t part = piece.length / piece.cp;
  if (hop > 0) piece.start = (piece.start / part + piece.cp - hop) % piece.cp * part;
  return piece;
}

/// Extents of an attention call: q [b,s,h e], k and v [b,t,g e].
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  bool causal;
  SequencePiece query_piece, key_piece;

  int64_t KvHeadOf(int64_t head) const { return head * kv_heads / heads; }
  /// Key j is visible to query i (rows of the pieces).
  bool Sees(int64_t i, int64_t j) const { return !causal || key_piece.PositionOf(j) <= query_piece.PositionOf(i); }
};

inline AttentionShape AttentionOf(const KernelCall& call) {
  const Tensor& q = call.inputs[0];
  const Tensor& k = call.inputs[1];
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  CHECK(q.shape.size() == 3 && k.shape.size() == 3 && q.shape[2] % e == 0 && k.shape[2] % e == 0,
        "attention: {} and {} do not hold heads of {}", ToString(q.shape), ToString(k.shape), e);
  const auto hop = static_cast<int64_t>(call.attributes->NumberOr("hop", 0));
  AttentionShape a{q.shape[0],
                   q.shape[1],
                   k.shape[1],
                   q.shape[2] / e,
                   k.shape[2] / e,
                   e,
                   call.attributes->NumberOr("causal", 1) != 0,
                   SequenceOf(call, q, 0),
                   SequenceOf(call, k, hop)};
  CHECK(a.heads == 0 || (a.kv_heads > 0 && a.heads % a.kv_heads == 0), "attention: {} heads on {} kv heads", a.heads,
        a.kv_heads);
  return a;
}

/// Heads of a merge: o [b,s,h e] and lse [b,h,s] of two parts.
inline AttentionShape MergedAttentionOf(const KernelCall& call) {
  const Tensor& o = call.inputs[0];
  const Tensor& lse = call.inputs[1];
  CHECK(o.shape.size() == 3 && lse.shape.size() == 3 && lse.shape[2] == o.shape[1] &&
            (lse.shape[1] == 0) == (o.shape[2] == 0),
        "attention_merge: {} and {} do not belong together", ToString(o.shape), ToString(lse.shape));
  const int64_t heads = lse.shape[1], e = heads == 0 ? 0 : o.shape[2] / heads;
  return {o.shape[0], o.shape[1], 0, heads, heads, e, false, {}, {}};
}

/// Row of `table` [p,d] for the position at `s`; CHECKs that it has one.
inline int64_t PositionRow(const Tensor& positions, int64_t s, const Tensor& table) {
  const int64_t row = positions.As<int32_t>()[s];
  CHECK(row >= 0 && row < table.shape[0], "position {} of a table of {}", row, table.shape[0]);
  return row;
}

/// Calls f(source, target, count) for each run of `count` adjacent elements of the box that `y` names inside `x`;
/// offsets in elements. CHECKs that the box lies inside x.
template <typename F>
void ForRunsOfSlice(const Tensor& x, const Tensor& y, F f) {
  const size_t dims = y.shape.size();
  CHECK(x.shape.size() == dims, "slice: {} out of {}", ToString(y.shape), ToString(x.shape));
  if (Volume(y.shape) == 0) return;
  Shape at(dims, 0);  // index within y, its last dim always 0
  for (size_t d = 0; d < dims; ++d) {
    const int64_t begin = StartOf(y, d) - StartOf(x, d);
    CHECK(begin >= 0 && begin + y.shape[d] <= x.shape[d], "slice: {} at {} lies outside {} at {}", ToString(y.shape),
          ToString(y.start), ToString(x.shape), ToString(x.start));
  }
  const int64_t run = ColumnsOf(y);
  const int64_t rows = RowsOf(y);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t source = 0;
    for (size_t d = 0; d < dims; ++d) source = source * x.shape[d] + at[d] + StartOf(y, d) - StartOf(x, d);
    f(source, row * run, run);
    for (size_t d = dims > 1 ? dims - 1 : 0; d-- > 0;) {
      if (++at[d] < y.shape[d]) break;
      at[d] = 0;
    }
  }
}

}  // namespace espalier
