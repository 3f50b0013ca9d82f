// Arguments of the kernels that run once per step.
#include "kernels/argument_reader.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {
namespace {

/// The source of the random bits for the t-th parameter of a call.
WordStream RoundingOf(const Reader& r, const Tensor& state, size_t t) {
  if (state.dtype == Dtype::kF32) return {};
  const Shape& shape = state.shape;
  CHECK(!shape.empty() && shape.size() <= 3, "moments {} are no vector, matrix or matrices", ToString(shape));
  const size_t last = shape.size() - 1;
  WordStream stream{r.Key("rounding", t), last == 0 ? 0 : StartOf(state, last - 1), StartOf(state, last), shape[last]};
  int64_t end = stream.row + (last == 0 ? 0 : shape[last - 1]);  // of rows
  if (last == 2) {
    CHECK(end <= kRowsOfMatrix, "moments {} at {}: a matrix has too many rows for its random bits", ToString(shape),
          ToString(state.start));
    stream.row += StartOf(state, 0) * kRowsOfMatrix;
    stream.rows = shape[1];
    end = (StartOf(state, 0) + shape[0]) * kRowsOfMatrix;
  }
  CHECK(end <= int64_t{1} << 32 && stream.column + stream.columns <= int64_t{1} << 34,
        "moments {} at {} are too large for their random bits", ToString(shape), ToString(state.start));
  return stream;
}

/// Matrices that a call treats one by one, with attribute `each`, and the elements of each.
struct Matrices {
  int64_t count, elements;
};
Matrices MatricesOf(const Reader& r, const Tensor& x, const Tensor& squares) {
  if (r.NumberOr("each", 0) == 0) return {1, Volume(x.shape)};
  CHECK(x.shape.size() == 3 && squares.shape == Shape{x.shape[0]}, "squares {} of matrices {}", ToString(squares.shape),
        ToString(x.shape));
  return {x.shape[0], x.shape[1] * x.shape[2]};
}

}  // namespace

template <>
SumSquaresArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const auto [count, elements] = MatricesOf(r, r.In(0), r.Out(0));
  return {r.InF32(0), r.OutF32(0), elements, count};
}

/// Inputs: loss, count, the limits of loss and norm (with limits), then the squares.
template <>
ClipArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  ClipArgs args{.loss = r.InF32(0),
                .count = r.InF32(1),
                .squares = {},
                .mean_loss = r.OutF32(0),
                .norm = r.OutF32(1),
                .scale = r.OutF32(2),
                .apply = r.OutF32(3),
                .first = r.OutF32(4),
                .clip_norm = r.Number("clip_norm"),
                .loss_limit = nullptr,
                .norm_limit = nullptr};
  size_t next = 2;
  if (r.NumberOr("limits", 0) > 0) {
    args.loss_limit = r.InF32(next++);
    args.norm_limit = r.InF32(next++);
  }
  for (size_t i = next; i < call.inputs.size(); ++i) args.squares.push_back(r.InF32(i));
  return args;
}

template <>
MeanArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  MeanArgs args{r.InF32(0), {}, r.OutF32(0)};
  for (size_t i = 1; i < call.inputs.size(); ++i) args.sums.push_back(r.InF32(i));
  return args;
}

/// Inputs lr, step, scale, apply, then master, exp_avg, exp_avg_sq and gradient of each tensor; outputs are the first
/// three of each, in place, and with attribute `copy` the copy of each master after them.
template <>
AdamwArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  AdamwArgs args{.lr = r.InF32(0),
                 .step = r.InF32(1),
                 .scale = r.InF32(2),
                 .apply = r.InF32(3),
                 .tensors = {},
                 .decaying = r.Integer("decaying"),
                 .constants = {r.Number("beta1"), r.Number("beta2"), r.Number("eps"), r.Number("weight_decay"),
                               r.NumberOr("lr_factor", 1)}};
  const size_t each = r.HasCopy() ? 4 : 3;
  for (size_t t = 0, o = 0; o < call.outputs.size(); ++t, o += each) {
    args.tensors.push_back({.master = r.OutF32(o),
                            .exp_avg = r.OutFloats(o + 1),
                            .exp_avg_sq = r.OutFloats(o + 2),
                            .copy = r.CopyOrNone(o + 3),
                            .gradient = r.InF32(4 + 4 * t + 3),
                            .n = Volume(r.Out(o).shape),
                            .rounding = RoundingOf(r, r.Out(o + 1), t)});
    const AdamwTensor &first = args.tensors[0], &last = args.tensors[t];
    CHECK(last.exp_avg.dtype == first.exp_avg.dtype && last.exp_avg_sq.dtype == first.exp_avg.dtype,
          "adamw: types of moments differ");
  }
  return args;
}

/// Inputs scale, apply, momentum, gradient, and the step if the momentum is bf16; outputs are the momentum, in place,
/// and the direction.
template <>
MuonDirectionArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& momentum = r.Out(0);
  return {.scale = r.InF32(0),
          .apply = r.InF32(1),
          .step = momentum.dtype == Dtype::kF32 ? nullptr : r.InF32(4),
          .momentum = r.OutFloats(0),
          .rounding = RoundingOf(r, momentum, 0),
          .gradient = r.InF32(3),
          .direction = r.OutF32(1),
          .n = Volume(r.Out(0).shape),
          .beta = r.Number("beta"),
          .nesterov = r.Number("nesterov") != 0};
}

template <>
NormalizeArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const auto [count, elements] = MatricesOf(r, r.In(0), r.In(1));
  return {r.InF32(0), r.InF32(1), r.OutFloats(0), elements, count, r.Number("eps")};
}

template <>
WeightedSumArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.InFloats(1), r.OutFloats(0), Volume(r.In(0).shape), r.Number("alpha"), r.Number("beta")};
}

template <>
MuonUpdateArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {.lr = r.InF32(0),
          .apply = r.InF32(1),
          .master = r.OutF32(0),
          .copy = r.CopyOrNone(1),
          .orthogonal = r.InFloats(3),
          .n = Volume(r.Out(0).shape),
          .weight_decay = r.Number("weight_decay"),
          .factor = r.Number("factor")};
}

}  // namespace espalier
