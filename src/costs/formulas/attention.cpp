// Attention, fused or plain. Shapes: q is [b, s, heads d], k and v are [b, t, kv_heads d].
#include <algorithm>

#include "espalier/deck/choices.hpp"
#include "espalier/util/error.hpp"
#include "formulas.hpp"

namespace espalier {
namespace {

struct Dims {
  int64_t batch_heads, queries, keys, head_dim;
};
Dims AttentionDims(const LocalOp& op) {
  const int64_t head_dim = op.op.attributes.Integer("head_dim");
  const Shape &q = op.inputs.at(0), &k = op.inputs.at(1);
  return {q.at(0) * q.at(2) / head_dim, q.at(1), k.at(1), head_dim};
}

bool IsGradient(const LocalOp& op) { return op.op.kind == OpKind::kAttentionGrad; }

/// Blocks of a ring but a rank's own have no diagonal.
const Curve& CurveOf(const AttentionRates& rates, const LocalOp& op) {
  return op.op.attributes.IntegerOr("hop", 0) > 0 ? rates.full : rates.causal;
}

/// TFLOP/s, between the head dims of the file by straight lines. Narrower heads fill less of a tile, wider ones as much
/// as the widest.
double ForwardTflops(const DeviceModel& d, const LocalOp& op, const Dims& dims) {
  Curve by_head_dim;
  for (const AttentionRates& rates : d.attention)
    by_head_dim.emplace_back(double(rates.head_dim), At(CurveOf(rates, op), double(dims.keys)));
  return At(by_head_dim, double(dims.head_dim)) * std::min(1.0, double(dims.head_dim) / by_head_dim.front().first);
}

/// Without curves: as a matmul of any shape.
double RateOf(const DeviceModel& d, const LocalOp& op, const Dims& dims) {
  const double peak = op.dtype == Dtype::kBf16 ? d.bf16_tflops : d.fp32_tflops;
  if (d.attention.empty()) return peak * d.matmul_share * d.sustained_share * 1e6;
  return ForwardTflops(d, op, dims) * (peak / d.bf16_tflops) * d.sustained_share * 1e6;
}

/// Rate of backward, relative to forward. Sums in a fixed order are slower.
double BackwardShare(const DeviceModel& d, const LocalOp& op) {
  const auto way = op.op.attributes.texts.find("backward");
  const bool ordered = way != op.op.attributes.texts.end() && way->second != kUnorderedBackward;
  return ordered && d.ordered_backward_share > 0 ? d.ordered_backward_share : d.attention_backward_share;
}

/// Share of the units that have work: one computes attention_rows rows of queries of one head.
double Occupied(const DeviceModel& d, const Dims& dims) {
  if (d.attention_rows <= 0) return 1;
  const auto blocks = double(dims.batch_heads * ((dims.queries + d.attention_rows - 1) / d.attention_rows));
  return std::min(1.0, blocks / d.units);
}

/// The matmuls of plain attention: scores are [queries, keys] for each head.
struct PlainMatmuls {
  const Cluster& cluster;
  const LocalOp& op;
  Dims dims;

  double Us(int64_t m, int64_t n, int64_t k) const {
    return MatmulUs(cluster.compute, {.batch = dims.batch_heads,
                                      .m = m,
                                      .n = n,
                                      .k = k,
                                      .dtype = op.dtype,
                                      .result_bytes = double(SizeOf(op.dtype)),
                                      .aligned = dims.head_dim * SizeOf(op.dtype) % 16 == 0});
  }
  double ToScores() const { return Us(dims.queries, dims.keys, dims.head_dim); }   // q k^T, or do v^T
  double ToQueries() const { return Us(dims.queries, dims.head_dim, dims.keys); }  // p v, or ds k
  double ToKeys() const { return Us(dims.keys, dims.head_dim, dims.queries); }     // ds^T q, p^T do
  /// A kernel that passes over `tensors` tensors of the size of the scores.
  double Passes(double tensors) const {
    const double bytes = tensors * double(dims.batch_heads * dims.queries * dims.keys * SizeOf(op.dtype));
    return MemoryUs(cluster.compute, bytes) + cluster.compute.kernel_us;
  }
  /// Reads, writes, and a mask of one byte per element.
  double Dropout() const { return cluster.attention_dropout ? Passes(2 + 1.0 / double(SizeOf(op.dtype))) : 0; }

  /// q k^T; scale, mask and softmax in one kernel; dropout; p v. The launch of the last kernel is added by KernelUs.
  double Forward() const { return ToScores() + cluster.compute.kernel_us + Passes(2) + Dropout() + ToQueries(); }
  /// Four matmuls; the softmax's gradient reads two tensors and writes one.
  double Backward() const {
    return 2 * ToKeys() + ToScores() + ToQueries() + 3 * cluster.compute.kernel_us + Passes(3) + Dropout();
  }
};

}  // namespace

double FusedAttentionUs(const DeviceModel& d, const LocalOp& op) {
  const Dims dims = AttentionDims(op);
  const double share = Occupied(d, dims) * (IsGradient(op) ? BackwardShare(d, op) : 1);
  return share > 0 ? Define(op.op.kind).kernel.work.flops(op) / (RateOf(d, op, dims) * share) : 0;
}

double PlainAttentionUs(const Cluster& cluster, const LocalOp& op) {
  const PlainMatmuls matmuls{cluster, op, AttentionDims(op)};
  return IsGradient(op) ? matmuls.Backward() : matmuls.Forward();
}

double PlainAttentionAgainUs(const Cluster& cluster, const LocalOp& grad) {
  CHECK(IsGradient(grad), "{} is no gradient of attention", grad.op.kind);
  return (PlainMatmuls{cluster, grad, AttentionDims(grad)}.Forward() + cluster.compute.kernel_us) / cluster.efficiency;
}

}  // namespace espalier
