// The arguments of kernels that route tokens to experts and compute on their rows.
#include "espalier/ops/matmul_spec.hpp"
#include "kernels/argument_reader.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {
namespace {

int64_t TokensOf(const Tensor& x) { return x.shape.at(0) * x.shape.at(1); }

int32_t* OutI32(const Reader& r, size_t i) {
  CHECK(r.Out(i).dtype == Dtype::kI32, "output {}: {} where i32 was expected", i, Name(r.Out(i).dtype));
  return r.Out(i).As<int32_t>();
}

bool UsesSigmoid(const Reader& r) {
  const std::string_view scores = r.TextOr("scores", "");
  CHECK(scores == "softmax" || scores == "sigmoid", "scores = {}", scores);
  return scores == "sigmoid";
}
RouterRule RuleOf(const Reader& r) {
  return {UsesSigmoid(r),           r.Number("normalize") != 0,   r.Number("scale"),
          r.IntegerOr("groups", 1), r.IntegerOr("top_groups", 1), r.IntegerOr("group_best", 2)};
}

int64_t PoolRows(const Tensor& rows) {
  CHECK(rows.shape.size() == 4, "rows {}", ToString(rows.shape));
  return rows.shape[0] * rows.shape[1] * rows.shape[2];
}
/// T[e,b,r,width], with the places i32[1,b,s,k] of a rank's tokens in its rows.
struct ExpertRows {
  int64_t tokens, per_token, width;
};
ExpertRows ExpertRowsOf(const Tensor& rows, const Tensor& places) {
  CHECK(rows.shape.size() == 4 && places.shape.size() == 4 && places.shape[0] == 1 && rows.shape[1] == places.shape[1],
        "rows {}, places {}", ToString(rows.shape), ToString(places.shape));
  return {places.shape[1] * places.shape[2], places.shape[3], rows.shape[3]};
}
/// i32[e,b,r]: the expert of each row.
GroupedRows GroupOf(const Reader& r, size_t input, int64_t experts) {
  return {r.InI32(input), Volume(r.In(input).shape), experts};
}

/// Biases [e,n] of rows T[e,b,r,n].
void CheckBiases(const Tensor& rows, const Shape& bias, const Tensor& of_row) {
  CHECK(PoolRows(rows) == Volume(of_row.shape) && bias == (Shape{rows.shape[0], rows.shape[3]}),
        "biases {} of rows {} with experts {}", ToString(bias), ToString(rows.shape), ToString(of_row.shape));
}

SwigluRule RuleOfSwiglu(const Reader& r) {
  const double limit = r.NumberOr("limit", 0);
  return limit > 0 ? SwigluRule{kGptOssAlpha, static_cast<float>(limit), 1} : SwigluRule{};
}

/// Operands in fp8: whichever product it is, it is computed as a forward one (GroupedMatmulArgs).
GroupedMatmulArgs ScaledArguments(const KernelCall& call, const MatmulSpec& spec) {
  const Reader r(call);
  const Tensor &a = r.In(0), &b = r.In(1), &c = r.Out(0);
  CHECK(IsFp8(a.dtype) && b.dtype == Dtype::kF8E4M3 && c.dtype == Dtype::kBf16 && !call.accumulate &&
            spec.b.back() == spec.a.back(),
        "grouped_matmul {}: {} by {} into {}, with scales", spec.Text(), Name(a.dtype), Name(b.dtype), Name(c.dtype));
  CHECK(b.shape.size() == 3 && a.shape.at(3) == b.shape[2] && c.shape.at(3) == b.shape[1] && b.shape[0] == a.shape[0],
        "grouped_matmul {}: {}, {} into {}", spec.Text(), ToString(a.shape), ToString(b.shape), ToString(c.shape));
  const bool rows = r.TextOr("scales", "") == "row";
  CHECK(Volume(r.In(3).shape) == PoolRows(a) && Volume(r.In(4).shape) == b.shape[0] * (rows ? b.shape[1] : 1),
        "grouped_matmul {}: scales {} and {}", spec.Text(), ToString(r.In(3).shape), ToString(r.In(4).shape));
  return {.product = GroupedProduct::kForward,
          .group = GroupOf(r, 2, b.shape[0]),
          .out = b.shape[1],
          .in = b.shape[2],
          .a = r.InAny(0),
          .b = r.InAny(1),
          .c = r.OutFloats(0),
          .accumulate = false,
          .a_scales = r.InF32(3),
          .b_scales = r.InF32(4),
          .b_has_row_scales = rows};
}

}  // namespace

template <>
GroupedMatmulArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const MatmulSpec of_call = GroupedSpecOf(*call.attributes);
  const std::string spec = of_call.Text();
  const Tensor &a = r.In(0), &b = r.In(1), &of_row = r.In(2), &c = r.Out(0);
  CHECK(PoolRows(a) == Volume(of_row.shape), "grouped_matmul: rows {}, experts {}", ToString(a.shape),
        ToString(of_row.shape));
  if (r.Inputs() > 3) return ScaledArguments(call, of_call);
  const auto args = [&](GroupedProduct product, const Shape& weight) {
    CHECK(weight.size() == 3 && weight[0] == a.shape[0], "grouped_matmul: weight {} of rows {}", ToString(weight),
          ToString(a.shape));
    return GroupedMatmulArgs{product,       GroupOf(r, 2, weight[0]), weight[1],      weight[2], r.InFloats(0),
                             r.InFloats(1), r.OutFloats(0),           call.accumulate};
  };
  if (spec == "ebsn,ebsk->enk") {
    CHECK(c.dtype == Dtype::kF32 && c.shape.size() == 3 && c.shape[1] == a.shape[3] && c.shape[2] == b.shape.at(3),
          "grouped_matmul {}: {}, {} into {}", spec, ToString(a.shape), ToString(b.shape), ToString(c.shape));
    return args(GroupedProduct::kWeightGradient, c.shape);
  }
  const bool forward = spec == "ebsk,enk->ebsn";
  CHECK(forward || spec == "ebsn,enk->ebsk", "grouped_matmul of {}", spec);
  CHECK(!call.accumulate && b.shape.size() == 3 && a.shape[3] == b.shape[forward ? 2 : 1] &&
            c.shape.at(3) == b.shape[forward ? 1 : 2],
        "grouped_matmul {}: {}, {} into {}", spec, ToString(a.shape), ToString(b.shape), ToString(c.shape));
  return args(forward ? GroupedProduct::kForward : GroupedProduct::kInputGradient, b.shape);
}

template <>
RouteArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &logits = r.In(0), &weights = r.Out(0);
  CHECK(weights.shape.at(2) <= logits.shape.at(2), "route: {} of {}", weights.shape[2], logits.shape[2]);
  const bool balanced = r.NumberOr("balanced", 0) != 0;
  const size_t last = r.Inputs() - 1;
  const int32_t* positions = balanced ? r.InI32(last) : nullptr;
  CHECK(!balanced || r.In(last).shape == Shape{logits.shape.at(1)}, "route: positions {} of logits {}",
        ToString(r.In(last).shape), ToString(logits.shape));
  return {r.InFloats(0),    last > (balanced ? 1 : 0) ? r.InF32(1) : nullptr,
          r.OutF32(0),      OutI32(r, 1),
          TokensOf(logits), logits.shape.at(2),
          weights.shape[2], RuleOf(r),
          positions,        logits.shape[1]};
}

template <>
RouteGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &logits = r.In(0), &chosen = r.In(1);
  return {r.InFloats(0),    r.InI32(1),         r.InF32(2),         r.OutFloats(0),
          TokensOf(logits), logits.shape.at(2), chosen.shape.at(2), RuleOf(r)};
}

template <>
ExpertLoadArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InI32(0), r.OutF32(0), Volume(r.In(0).shape), r.Out(0).shape.at(0), call.accumulate};
}

template <>
ConcatenateArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  ConcatenateArgs args{{}, r.OutF32(0)};
  int64_t elements = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    args.inputs.push_back({r.InF32(i), Volume(r.In(i).shape)});
    elements += args.inputs.back().n;
  }
  CHECK(elements == Volume(r.Out(0).shape), "concatenate: {} elements into {}", elements, ToString(r.Out(0).shape));
  return args;
}

template <>
BiasUpdateArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &bias = r.Out(0), &load = r.In(2);
  CHECK(bias.start.at(0) + bias.shape.at(0) <= load.shape.at(0), "bias_update: {} of {}", ToString(bias.shape),
        ToString(load.shape));
  return {r.InF32(0), r.InF32(2), r.OutF32(0), bias.start[0], bias.shape[0], load.shape[0], r.Number("rate")};
}

template <>
BalanceArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Shape &logits = r.In(0).shape, &chosen = r.In(1).shape;
  return {r.InFloats(0), r.InI32(1),   r.OutF32(0),  r.OutF32(1),  r.OutF32(2),
          logits.at(0),  logits.at(1), logits.at(2), chosen.at(2), UsesSigmoid(r)};
}

template <>
BalanceGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Shape& logits = r.In(0).shape;
  return {r.InFloats(0), r.InF32(1),     r.OutFloats(0),      logits.at(0),      logits.at(1),
          logits.at(2),  UsesSigmoid(r), r.Number("balance"), r.Number("z_loss")};
}

template <>
RouterLossArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InF32(0),
          r.InF32(1),
          r.InF32(2),
          r.OutF32(0),
          r.OutF32(1),
          Volume(r.In(0).shape),
          Volume(r.In(2).shape),
          r.Number("balance"),
          r.Number("z_loss"),
          call.accumulate};
}

template <>
RouterEntropyArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& logits = r.In(0);
  return {r.InFloats(0), r.OutF32(0), TokensOf(logits), logits.shape.at(2), UsesSigmoid(r), call.accumulate};
}

template <>
DispatchArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const ExpertRows rows = ExpertRowsOf(r.Out(0), r.Out(3));
  const Tensor& experts = r.Out(2);
  const int64_t count = PoolRows(r.Out(0));
  CHECK(TokensOf(r.In(0)) == rows.tokens && r.In(0).shape.at(2) == rows.width && Volume(experts.shape) == count,
        "dispatch: {} into {}", ToString(r.In(0).shape), ToString(r.Out(0).shape));
  return {.x = r.InFloats(0),
          .chosen = r.InI32(1),
          .weights = r.InF32(2),
          .rows = r.OutFloats(0),
          .row_weights = r.OutF32(1),
          .expert_of_row = OutI32(r, 2),
          .places = OutI32(r, 3),
          .tokens = rows.tokens,
          .per_token = rows.per_token,
          .width = rows.width,
          .first_expert = experts.start.at(0),
          .experts = experts.shape[0],
          .first_row = r.IntegerOr("pass", 0) * count,
          .count = count};
}

template <>
DispatchGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const ExpertRows rows = ExpertRowsOf(r.In(0), r.In(2));
  return {r.InFloats(0), r.InF32(1),     r.InI32(2), r.OutFloats(0), r.OutF32(1),
          rows.tokens,   rows.per_token, rows.width, call.accumulate};
}

template <>
CombineArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const ExpertRows rows = ExpertRowsOf(r.In(0), r.In(1));
  return {r.InFloats(0), r.InI32(1), r.OutFloats(0), rows.tokens, rows.per_token, rows.width, call.accumulate};
}

template <>
CombineGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const ExpertRows rows = ExpertRowsOf(r.Out(0), r.In(1));
  return {r.InFloats(0), r.InI32(1), r.OutFloats(0), rows.tokens, rows.per_token, rows.width};
}

template <>
AddRowBiasArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &x = r.In(0), &bias = r.In(1);
  CheckBiases(x, bias.shape, r.In(2));
  return {
      r.InFloats(0), r.InFloats(1), r.Inputs() > 3 ? r.InF32(3) : nullptr, r.OutFloats(0), GroupOf(r, 2, bias.shape[0]),
      bias.shape[1]};
}

template <>
RowBiasGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Shape& bias = r.Out(0).shape;
  CheckBiases(r.In(0), bias, r.In(1));
  return {r.InFloats(0),  r.Inputs() > 2 ? r.InF32(2) : nullptr, r.OutF32(0), GroupOf(r, 1, bias[0]), bias[1],
          call.accumulate};
}

template <>
RowWeightGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Shape& bias = r.In(1).shape;
  CheckBiases(r.In(0), bias, r.In(2));
  return {r.InFloats(0), r.InFloats(1), r.OutF32(0), GroupOf(r, 2, bias[0]), bias[1]};
}

template <>
WeightedSwigluArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0),       r.InFloats(1),  r.InF32(2), r.OutFloats(0), GroupOf(r, 3, r.In(0).shape.at(0)),
          r.In(0).shape.at(3), RuleOfSwiglu(r)};
}

template <>
WeightedSwigluGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0),       r.InFloats(1),  r.InF32(2),  r.InFloats(3),
          r.OutFloats(0),      r.OutFloats(1), r.OutF32(2), GroupOf(r, 4, r.In(0).shape.at(0)),
          r.In(0).shape.at(3), RuleOfSwiglu(r)};
}

}  // namespace espalier
