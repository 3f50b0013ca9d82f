// The arguments of norms.
#include "kernels/argument_reader.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {
namespace {

/// Rows of a norm in `x`: one per head of the attribute, or whole rows. `sums` has one number per row.
NormRows NormRowsOf(const Reader& r, const Tensor& x, const Tensor& sums) {
  const int64_t width = r.IntegerOr("head_dim", ColumnsOf(x));
  const int64_t rows = width == 0 ? RowsOf(x) : Volume(x.shape) / width;
  CHECK((width == 0 || ColumnsOf(x) % width == 0) && Volume(sums.shape) == rows, "{} has not the sums {} of rows of {}",
        ToString(x.shape), ToString(sums.shape), width);
  return {rows, width, r.IntegerOr("width", width)};
}

}  // namespace

template <>
RmsNormArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {.x = r.InFloats(0),
          .weight = r.InFloats(1),
          .addend = r.InFloatsOrNone(2),
          .y = r.OutFloats(0),
          .rstd = r.OutF32(1),
          .sum = r.OutFloatsOrNone(2),
          .rows = RowsOf(x),
          .width = ColumnsOf(x),
          .eps = r.Number("eps")};
}

template <>
RmsNormGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {.x = r.InFloats(0),
          .weight = r.InFloats(1),
          .rstd = r.InF32(2),
          .dy = r.InFloats(3),
          .addend = r.InFloatsOrNone(4),
          .dx = r.OutFloats(0),
          .rows = RowsOf(x),
          .width = ColumnsOf(x)};
}

template <>
RmsNormWeightGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {.x = r.InFloats(0),
          .rstd = r.InF32(1),
          .dy = r.InFloats(2),
          .dweight = r.OutF32(0),
          .rows = RowsOf(x),
          .width = ColumnsOf(x),
          .accumulate = call.accumulate};
}

template <>
RmsNormBackwardArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const auto input = ReadArguments<RmsNormGradArgs>(call);
  return {input,
          {.x = input.x,
           .rstd = input.rstd,
           .dy = input.dy,
           .dweight = r.OutF32(1),
           .rows = input.rows,
           .width = input.width,
           .accumulate = call.accumulate}};
}

template <>
LayerNormArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {.x = r.InFloats(0),
          .weight = r.InFloats(1),
          .bias = r.InFloats(2),
          .addend = r.InFloatsOrNone(3),
          .y = r.OutFloats(0),
          .mean = r.OutF32(1),
          .rstd = r.OutF32(2),
          .sum = r.OutFloatsOrNone(3),
          .rows = RowsOf(x),
          .width = ColumnsOf(x),
          .eps = r.Number("eps")};
}

template <>
LayerNormGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {.x = r.InFloats(0),
          .weight = r.InFloats(1),
          .mean = r.InF32(2),
          .rstd = r.InF32(3),
          .dy = r.InFloats(4),
          .addend = r.InFloatsOrNone(5),
          .dx = r.OutFloats(0),
          .rows = RowsOf(x),
          .width = ColumnsOf(x)};
}

template <>
LayerNormWeightGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {.x = r.InFloats(0),
          .mean = r.InF32(1),
          .rstd = r.InF32(2),
          .dy = r.InFloats(3),
          .dweight = r.OutF32(0),
          .dbias = r.OutF32(1),
          .rows = RowsOf(x),
          .width = ColumnsOf(x),
          .accumulate = call.accumulate};
}

template <>
LayerNormBackwardArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const auto input = ReadArguments<LayerNormGradArgs>(call);
  return {input,
          {.x = input.x,
           .mean = input.mean,
           .rstd = input.rstd,
           .dy = input.dy,
           .dweight = r.OutF32(1),
           .dbias = r.OutF32(2),
           .rows = input.rows,
           .width = input.width,
           .accumulate = call.accumulate}};
}

template <>
RowSquaresArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.OutF32(0), NormRowsOf(r, r.In(0), r.Out(0))};
}

template <>
RowSquaresGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InF32(0), r.InFloats(1), r.OutFloats(0), NormRowsOf(r, r.In(1), r.In(0))};
}

template <>
RowNormArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {.x = r.InFloats(0),
          .weight = r.InFloats(1),
          .sums = r.InF32(2),
          .y = r.OutFloats(0),
          .shape = NormRowsOf(r, r.In(0), r.In(2)),
          .eps = r.Number("eps")};
}

template <>
RowNormGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {.dy = r.InFloats(0),
          .weight = r.InFloats(1),
          .sums = r.InF32(2),
          .dx = r.OutFloats(0),
          .shape = NormRowsOf(r, r.In(0), r.In(2)),
          .eps = r.Number("eps")};
}

template <>
RowNormSquaresGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {.dy = r.InFloats(0),
          .x = r.InFloats(1),
          .weight = r.InFloats(2),
          .sums = r.InF32(3),
          .dsums = r.OutF32(0),
          .shape = NormRowsOf(r, r.In(1), r.In(3)),
          .eps = r.Number("eps")};
}

template <>
RowNormWeightGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {.dy = r.InFloats(0),
          .x = r.InFloats(1),
          .sums = r.InF32(2),
          .dweight = r.OutF32(0),
          .shape = NormRowsOf(r, r.In(1), r.In(2)),
          .eps = r.Number("eps"),
          .accumulate = call.accumulate};
}

}  // namespace espalier
