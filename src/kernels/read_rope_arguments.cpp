// Arguments of rotations, and of latents.
#include <cmath>

#include "espalier/graph/columns.hpp"
#include "kernels/argument_reader.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {
namespace {

/// The attributes of rope_table.
RopeRule RopeRuleOf(const Reader& r) {
  const std::string_view name = r.TextOr("stretch", "none");
  const RopeStretch stretch = name == "linear"   ? RopeStretch::kLinear
                              : name == "llama3" ? RopeStretch::kLlama3
                              : name == "yarn"   ? RopeStretch::kYarn
                                                 : RopeStretch::kNone;
  CHECK(stretch != RopeStretch::kNone || name == "none", "rope_table: stretch {}", name);
  return {.theta = r.Number("theta"),
          .head_dim = r.Integer("head_dim"),
          .stretch = stretch,
          .factor = r.NumberOr("factor", 1),
          .low = r.NumberOr("low", 0),
          .high = r.NumberOr("high", 1),
          .original_length = r.NumberOr("original_length", 0),
          .amplitude = r.NumberOr("amplitude", 1)};
}

LatentWidths LatentWidthsOf(const Reader& r, const Tensor& kv, const Tensor& shared, const Tensor& k, const Tensor& v) {
  const int64_t nope = r.Integer("nope_dim"), value = r.Integer("value_dim"), rope = ColumnsOf(shared),
                heads = ColumnsOf(kv) / (nope + value);
  CHECK(
      ColumnsOf(k) == heads * (nope + rope) && ColumnsOf(v) == heads * value && ColumnsOf(kv) == heads * (nope + value),
      "latent_keys: {} and {} beside {} and {}", ToString(kv.shape), ToString(shared.shape), ToString(k.shape),
      ToString(v.shape));
  return {RowsOf(kv), heads, nope, rope, value};
}

}  // namespace

template <>
RopeArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  const int64_t e = r.Integer("head_dim");
  const int64_t last =
      call.attributes->texts.contains(kColumns) ? LocalColumns(*call.attributes, ColumnsOf(x)).back() : 0;
  const int64_t rotated = ColumnsOf(x) - last;  // the last part of a joined tensor is not rotated
  const int64_t rope_dim = r.In(1).shape.at(1), first = r.IntegerOr("first", 0);
  CHECK(rope_dim % 2 == 0 && first + rope_dim <= e && rotated % e == 0,
        "rope: {} does not hold heads of {}, {} rotated", ToString(x.shape), e, rope_dim);
  return {.x = r.InFloats(0),
          .table = r.InF32(1),
          .y = r.OutFloats(0),
          .rows = RowsOf(x),
          .width = ColumnsOf(x),
          .rotated = rotated,
          .length = x.shape[1],
          .head_dim = e,
          .rope_dim = rope_dim,
          .sine_sign = r.NumberOr("inverse", 0) != 0 ? -1.0f : 1.0f,
          .first = first,
          .adjacent = r.NumberOr("adjacent", 0) != 0};
}

template <>
LatentKeysArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {LatentWidthsOf(r, r.In(0), r.In(1), r.Out(0), r.Out(1)), r.InFloats(0), r.InFloats(1), r.OutFloats(0),
          r.OutFloats(1)};
}

template <>
LatentKeysGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {LatentWidthsOf(r, r.Out(0), r.Out(1), r.In(0), r.In(1)), r.InFloats(0), r.InFloats(1), r.OutFloats(0),
          r.OutFloats(1)};
}

template <>
LatentAttentionArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &q = r.In(0), &w = r.In(1), &latents = r.In(2), &rotated = r.In(3);
  const int64_t nope = r.Integer("nope_dim"), value = r.Integer("value_dim"), rope = ColumnsOf(rotated),
                heads = ColumnsOf(q) / (nope + rope), rank = ColumnsOf(latents);
  CHECK(ColumnsOf(q) == heads * (nope + rope) && w.shape == Shape({heads * (nope + value), rank}) &&
            RowsOf(latents) == RowsOf(rotated) && latents.shape.at(0) == q.shape.at(0) &&
            r.In(4).shape == Shape{q.shape.at(1)},
        "latent_attention: {} by {} to {} and {}", ToString(q.shape), ToString(w.shape), ToString(latents.shape),
        ToString(rotated.shape));
  return {.q = r.InFloats(0),
          .w = r.InFloats(1),
          .latents = r.InFloats(2),
          .rotated = r.InFloats(3),
          .positions = r.InI32(4),
          .o = r.OutFloats(0),
          .lse = r.OutF32(1),
          .batch = q.shape[0],
          .queries = q.shape[1],
          .heads = heads,
          .nope = nope,
          .rope = rope,
          .value = value,
          .rank = rank,
          .tokens = latents.shape.at(1),
          .window = r.IntegerOr("window", 0),
          .scale = static_cast<float>(r.NumberOr("score_factor", 1) / std::sqrt(double(nope + rope)))};
}

template <>
RopeTableArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InI32(0), r.OutF32(0), Volume(r.In(0).shape), RopeRuleOf(r)};
}

}  // namespace espalier
