#include "kernels/read_arguments.hpp"

#include <algorithm>
#include <cmath>

#include "espalier/graph/columns.hpp"
#include "espalier/kernels/shapes.hpp"
#include "kernels/argument_reader.hpp"

namespace espalier {
namespace {

LogitsShard LogitsOf(const Reader& r) {
  const Tensor& x = r.In(0);
  return {r.InFloats(0), RowsOf(x), ColumnsOf(x), StartOf(x, x.shape.size() - 1)};
}

float WeightOf(const Reader& r) { return static_cast<float>(r.NumberOr("weight", 1)); }

/// The shard of dim 1 of a [b,s,...] tensor. Under context parallelism ops state `cp` and `length`; in a ring, the keys
/// come from the rank `hop` places before.
SequenceShard SequenceOf(const Reader& r, const Tensor& x, int64_t hop) {
  SequenceShard shard{StartOf(x, 1), 0, r.IntegerOr("cp", 1)};
  if (shard.cp == 1) return shard;
  shard.length = r.Integer("length");
  const int64_t rows = shard.length / shard.cp;
  if (hop > 0) shard.start = (shard.start / rows + shard.cp - hop) % shard.cp * rows;
  return shard;
}

/// Rows of heads and what attention keeps of each: o [b,s,heads head_dim], lse [b,heads,s], a sink per head.
struct HeadRows {
  int64_t batch, queries, heads, head_dim;
};
HeadRows HeadRowsOf(const Reader& r, const Tensor& o, const Tensor& lse, const Tensor& sinks) {
  const HeadRows rows{o.shape.at(0), o.shape.at(1), lse.shape.at(1), r.Integer("head_dim")};
  CHECK(o.shape.at(2) == rows.heads * rows.head_dim && lse.shape.at(2) == rows.queries &&
            sinks.shape == Shape{rows.heads},
        "attention_sink: {}, {} and {} do not belong together", ToString(o.shape), ToString(lse.shape),
        ToString(sinks.shape));
  return rows;
}

bool IsJoined(const KernelCall& call) {
  return call.attributes != nullptr && call.attributes->texts.contains(kColumns);
}

/// The first elements of the parts of a joined tensor.
std::vector<Array> PartsOf(const KernelCall& call, const Tensor& x) {
  CHECK(x.dtype != Dtype::kI32, "a floating-point tensor was expected");
  std::vector<Array> parts;
  auto* at = x.As<std::byte>();
  for (int64_t width : LocalColumns(*call.attributes, ColumnsOf(x))) {
    parts.push_back({at, x.dtype});
    at += width * SizeOf(x.dtype);
  }
  return parts;
}

/// Widths of q, k and v: three inputs, or parts of input 0.
struct AttentionWidths {
  int64_t q, k, v, joined_row;
};
AttentionWidths WidthsOf(const KernelCall& call) {
  const Reader r(call);
  if (!IsJoined(call)) return {ColumnsOf(r.In(0)), ColumnsOf(r.In(1)), ColumnsOf(r.In(2)), 0};
  const std::vector<int64_t> parts = LocalColumns(*call.attributes, ColumnsOf(r.In(0)));
  CHECK(parts.size() == 3, "attention: {} joined tensors", parts.size());
  return {parts[0], parts[1], parts[2], ColumnsOf(r.In(0))};
}

AttentionShape AttentionOf(const KernelCall& call) {
  const Reader r(call);
  const Tensor &q = r.In(0), &k = IsJoined(call) ? q : r.In(1);
  const AttentionWidths widths = WidthsOf(call);
  const int64_t e = r.Integer("head_dim"), value_dim = r.IntegerOr("value_dim", e);
  CHECK(q.shape.size() == 3 && k.shape.size() == 3 && widths.q % e == 0 && widths.k % e == 0 &&
            widths.k / e * value_dim == widths.v,
        "attention: {} and {} do not hold heads of {}, or values heads of {}", ToString(q.shape), ToString(k.shape), e,
        value_dim);
  const AttentionShape a{q.shape[0],
                         q.shape[1],
                         k.shape[1],
                         widths.q / e,
                         widths.k / e,
                         e,
                         r.NumberOr("causal", 1) != 0,
                         SequenceOf(r, q, 0),
                         SequenceOf(r, k, r.IntegerOr("hop", 0)),
                         r.IntegerOr("window", 0),
                         widths.joined_row,
                         value_dim,
                         static_cast<float>(r.NumberOr("score_factor", 1))};
  CHECK(a.heads == 0 || (a.kv_heads > 0 && a.heads % a.kv_heads == 0), "attention: {} heads on {} kv heads", a.heads,
        a.kv_heads);
  CHECK(a.causal || a.window == 0, "attention: a window of {} without a causal mask", a.window);
  return a;
}

/// q, k and v, or their gradients: three operands, or parts of one.
std::vector<Array> QkvIn(const KernelCall& call) {
  const Reader r(call);
  if (IsJoined(call)) return PartsOf(call, r.In(0));
  return {r.InFloats(0), r.InFloats(1), r.InFloats(2)};
}
std::vector<Array> QkvOut(const KernelCall& call) {
  const Reader r(call);
  if (IsJoined(call)) return PartsOf(call, r.Out(0));
  return {r.OutFloats(0), r.OutFloats(1), r.OutFloats(2)};
}

/// The attributes of dropout, and operands `tokens` and the next one: numbers of tokens, and the step.
DropoutMask MaskOf(const Reader& r, size_t tokens, int64_t rows, int64_t first) {
  const double rate = r.Number("rate");
  CHECK(0 < rate && rate < 1 && Volume(r.In(tokens).shape) == rows, "dropout of {}: {} tokens for {} rows", rate,
        ToString(r.In(tokens).shape), rows);
  return {.key = r.Key("key", 0),
          .threshold = static_cast<uint32_t>(std::min(std::round(rate * 0x1p32), 0x1p32 - 1)),
          .scale = static_cast<float>(1 / (1 - rate)),
          .tokens = r.InI32(tokens),
          .step = r.InF32(tokens + 1),
          .first = first};
}

/// Optional operands of attention, from `operand` on: where each query's document begins; then the operands of dropout.
bool HasDropout(const Reader& r) { return r.NumberOr("rate", 0) > 0; }
DropoutMask MaskOfAttention(const Reader& r, const AttentionShape& a, const Tensor& lse) {
  if (!HasDropout(r)) return {};
  return MaskOf(r, r.Inputs() - 2, a.batch * a.queries, StartOf(lse, 1));
}
const int32_t* FirstKeysOf(const Reader& r, const AttentionShape& a, size_t operand) {
  if (r.Inputs() == operand + (HasDropout(r) ? 2 : 0) || r.IntegerOr("cached", 0) != 0) return nullptr;
  const Tensor& x = r.In(operand);
  CHECK(a.causal && x.shape == Shape({a.batch, a.queries}), "attention: first keys {} for [{},{}] queries",
        ToString(x.shape), a.batch, a.queries);
  return r.InI32(operand);
}

GateRows OneRow(const Tensor& x) { return {1, Volume(x.shape), Volume(x.shape)}; }
/// Rows of gate and up, which are side by side in `both`; `each` has the shape of one of them.
GateRows GateRowsOf(const Tensor& each, const Tensor& both) {
  CHECK(RowsOf(each) == RowsOf(both) && 2 * ColumnsOf(each) == ColumnsOf(both), "swiglu: gate and up {} beside {}",
        ToString(both.shape), ToString(each.shape));
  return {RowsOf(each), ColumnsOf(each), ColumnsOf(both)};
}

}  // namespace

template <>
EmbeddingArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& table = r.In(1);
  return {r.InI32(0),     r.InFloats(1),  r.OutFloats(0),   Volume(r.In(0).shape),
          table.shape[0], table.shape[1], StartOf(table, 0)};
}

template <>
EmbeddingGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& table = r.Out(0);
  return {r.InI32(0),     r.InFloats(1),  r.OutF32(0),       Volume(r.In(0).shape),
          table.shape[0], table.shape[1], StartOf(table, 0), call.accumulate};
}

template <>
PositionEmbeddingArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &x = r.In(0), &positions = r.In(1), &table = r.In(2);
  return {r.InFloats(0),           r.InI32(1),     r.InFloats(2), r.OutFloats(0), RowsOf(x),
          Volume(positions.shape), table.shape[0], ColumnsOf(x)};
}

template <>
PositionEmbeddingGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &positions = r.In(0), &dy = r.In(1), &table = r.Out(0);
  // If each sequence has its own positions, the batch counts as one long sequence.
  const bool own = positions.shape.size() == 2;
  return {r.InI32(0),     r.InFloats(1),  r.OutF32(0),    own ? 1 : dy.shape[0], own ? RowsOf(dy) : dy.shape[1],
          table.shape[0], table.shape[1], call.accumulate};
}

template <>
AddBiasArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.InFloats(1), r.OutFloats(0), RowsOf(r.In(0)), ColumnsOf(r.In(0))};
}

template <>
BiasGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.OutF32(0), RowsOf(r.In(0)), ColumnsOf(r.In(0)), call.accumulate};
}

template <>
GeluArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.OutFloats(0), Volume(r.Out(0).shape)};
}

template <>
GeluGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.InFloats(1), r.OutFloats(0), Volume(r.Out(0).shape)};
}

template <>
DropoutArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor& x = r.In(0);
  return {r.InFloats(0), r.OutFloats(0), RowsOf(x), ColumnsOf(x),
          MaskOf(r, 1, RowsOf(x), StartOf(x, x.shape.size() - 1))};
}

template <>
MatmulArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Gemm gemm = GemmOf(call);
  const size_t scales = gemm.bias ? 3 : 2;
  MatmulArgs args{gemm, r.InAny(0), r.InAny(1), gemm.bias ? r.InFloats(2) : Array{}, r.OutFloats(0)};
  if (gemm.scales == Scales::kNone) return args;
  args.a_scales = r.InAny(scales);
  args.b_scales = r.InAny(scales + 1);
  return args;
}

template <>
QuantizeArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const QuantizeSpec spec = QuantizeSpecOf(*call.attributes);
  const bool transposed = spec.IsTransposed();
  const bool in_blocks = spec.HasBlockScales();
  const ScaleOf scale_of = in_blocks ? ScaleOf::kBlock : spec.HasRowScales() ? ScaleOf::kRow : ScaleOf::kTensor;
  const Tensor &x = r.In(0), &y = r.Out(0), &scales = r.Out(1);
  const int64_t width = ColumnsOf(x), blocks = spec.IsOfExpertWeights() ? x.shape.at(0) : 1,
                rows = spec.IsOfExpertWeights() ? x.shape.at(1) : RowsOf(x);
  CHECK(x.dtype == Dtype::kBf16 && IsFp8(y.dtype), "quantize: {} to {}", Name(x.dtype), Name(y.dtype));
  CHECK(Volume(y.shape) == blocks * rows * width &&
            (transposed ? y.shape.at(spec.IsOfExpertWeights() ? 1 : 0) == width : ColumnsOf(y) == width),
        "quantize {}: {} into {}", spec.Text(), ToString(x.shape), ToString(y.shape));
  const QuantizeArgs args{.x = r.InFloats(0),
                          .y = r.OutAny(0),
                          .scales = r.OutAny(1),
                          .rows = rows,
                          .width = width,
                          .transposed = transposed,
                          .scale_of = scale_of,
                          .blocks = blocks,
                          .expert_of_row = spec.IsOfExpertRows() ? r.InI32(1) : nullptr,
                          .scale_bytes = in_blocks ? Volume(scales.shape) : 0};
  CHECK(!in_blocks || args.Depth() % kScaleBlock == 0, "quantize {}: {} is no multiple of {}", spec.Text(),
        args.Depth(), kScaleBlock);
  CHECK(scales.dtype == (in_blocks ? Dtype::kF8E8M0 : Dtype::kF32) &&
            (in_blocks ? args.scale_bytes >= BlockScaleBytes(args.Lines(), args.Depth())
                       : Volume(scales.shape) == blocks * args.ScalesOfBlock()),
        "quantize {}: scales {} {} of {}", spec.Text(), Name(scales.dtype), ToString(scales.shape), ToString(y.shape));
  return args;
}

template <>
AttentionArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const AttentionShape shape = AttentionOf(call);
  const std::vector<Array> qkv = QkvIn(call);
  const size_t last = IsJoined(call) ? 1 : 3;
  const bool cached = r.IntegerOr("cached", 0) != 0;
  CHECK(!cached || r.In(last).shape == Shape{shape.queries}, "attention: positions {} of {} queries",
        ToString(r.In(last).shape), shape.queries);
  return {.shape = shape,
          .first_keys = FirstKeysOf(r, shape, last),
          .q = qkv[0],
          .k = qkv[1],
          .v = qkv[2],
          .o = r.OutFloats(0),
          .lse = r.OutF32(1),
          .positions = cached ? r.InI32(last) : nullptr,
          .dropout = MaskOfAttention(r, shape, r.Out(1))};
}

template <>
AttentionGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const AttentionShape shape = AttentionOf(call);
  const std::vector<Array> qkv = QkvIn(call), gradients = QkvOut(call);
  const size_t o = IsJoined(call) ? 1 : 3;
  return {.shape = shape,
          .first_keys = FirstKeysOf(r, shape, o + 3),
          .q = qkv[0],
          .k = qkv[1],
          .v = qkv[2],
          .o = r.InFloats(o),
          .lse = r.InF32(o + 1),
          .d_o = r.InFloats(o + 2),
          .dq = gradients[0],
          .dk = gradients[1],
          .dv = gradients[2],
          .backward = BackwardMethodOf(r.TextOr("backward", "parts")),
          .dropout = MaskOfAttention(r, shape, r.In(o + 1))};
}

template <>
AttentionMergeArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &o = r.In(0), &lse = r.In(1);
  CHECK(o.shape.size() == 3 && lse.shape.size() == 3 && lse.shape[2] == o.shape[1] &&
            (lse.shape[1] == 0) == (o.shape[2] == 0),
        "attention_merge: {} and {} do not belong together", ToString(o.shape), ToString(lse.shape));
  const int64_t heads = lse.shape[1];
  return {.o_a = r.InF32(0),
          .lse_a = r.InF32(1),
          .o_b = r.InF32(2),
          .lse_b = r.InF32(3),
          .o = r.OutFloats(0),
          .lse = r.OutF32(1),
          .batch = o.shape[0],
          .queries = o.shape[1],
          .heads = heads,
          .head_dim = heads == 0 ? 0 : o.shape[2] / heads};
}

template <>
AttentionSinkArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const HeadRows rows = HeadRowsOf(r, r.In(0), r.In(1), r.In(2));
  return {r.InFloats(0), r.InF32(1),   r.InFloats(2), r.OutFloats(0), r.OutF32(1),
          rows.batch,    rows.queries, rows.heads,    rows.head_dim};
}

template <>
AttentionSinkGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const HeadRows rows = HeadRowsOf(r, r.In(2), r.In(0), r.In(1));
  return {r.InF32(0), r.InFloats(1), r.InFloats(2), r.InFloats(3), r.OutF32(0),
          rows.batch, rows.queries,  rows.heads,    rows.head_dim, call.accumulate};
}

template <>
CacheWriteArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &cache = r.In(0), &x = r.In(1), &positions = r.In(2);
  CHECK(cache.dtype == x.dtype && x.shape.size() == 3 && cache.shape.size() == 3 && x.shape[0] == cache.shape[0] &&
            x.shape[2] == cache.shape[2] && positions.shape == Shape{x.shape[1]},
        "cache_write: {} at {} into {}", ToString(x.shape), ToString(positions.shape), ToString(cache.shape));
  return {.cache = cache.data,
          .positions = r.InI32(2),
          .x = x.data,
          .y = r.Out(0).data,
          .batch = x.shape[0],
          .rows = x.shape[1],
          .length = cache.shape[1],
          .row_bytes = x.shape[2] * SizeOf(x.dtype)};
}

template <>
AddArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  AddArgs args{.terms = {}, .y = r.OutFloats(0), .n = Volume(r.Out(0).shape)};
  for (const Tensor& x : call.inputs) {
    CHECK(x.dtype == args.y.dtype, "add: types differ");
    args.terms.push_back(x.data);
  }
  return args;
}

template <>
AccumulateArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InF32(0), r.OutF32(0), Volume(r.Out(0).shape), call.accumulate};
}

template <>
SwigluArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  if (IsJoined(call)) {
    const std::vector<Array> parts = PartsOf(call, r.In(0));
    return {parts.at(0), parts.at(1), r.OutFloats(0), GateRowsOf(r.Out(0), r.In(0))};
  }
  return {r.InFloats(0), r.InFloats(1), r.OutFloats(0), OneRow(r.Out(0))};
}

template <>
SwigluGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  if (IsJoined(call)) {
    const std::vector<Array> parts = PartsOf(call, r.In(0)), gradients = PartsOf(call, r.Out(0));
    return {parts.at(0), parts.at(1), r.InFloats(1), gradients.at(0), gradients.at(1), GateRowsOf(r.In(1), r.In(0))};
  }
  return {r.InFloats(0), r.InFloats(1), r.InFloats(2), r.OutFloats(0), r.OutFloats(1), OneRow(r.Out(0))};
}

template <>
CastArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {r.InFloats(0), r.OutFloats(0), Volume(r.Out(0).shape)};
}

template <>
LogitsMaxArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {LogitsOf(r), r.OutF32(0)};
}

template <>
LogitsSumArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  if (call.inputs.size() == 2) return {LogitsOf(r), nullptr, r.InI32(1), r.OutF32(0), r.OutF32(1), r.OutF32(2)};
  return {LogitsOf(r), r.InF32(1), r.InI32(2), r.OutF32(0), r.OutF32(1), nullptr};
}

template <>
TokenLossArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {.max = r.InF32(0),
          .sum = r.InF32(1),
          .target = r.InF32(2),
          .targets = r.InI32(3),
          .loss = r.OutF32(0),
          .count = r.OutF32(1),
          .z = call.outputs.size() > 2 ? r.OutF32(2) : nullptr,
          .rows = Volume(r.In(0).shape),
          .accumulate = call.accumulate,
          .z_loss = r.NumberOr("z_loss", 0)};
}

template <>
CrossEntropyGradArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {LogitsOf(r), r.InF32(1), r.InF32(2), r.InI32(3), r.OutFloats(0), r.NumberOr("z_loss", 0), WeightOf(r)};
}

template <>
CrossEntropyArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  return {LogitsOf(r), r.InI32(1), r.OutF32(0), r.OutF32(1), r.OutF32(2), r.OutFloats(3), r.NumberOr("z_loss", 0),
          WeightOf(r)};
}

}  // namespace espalier
