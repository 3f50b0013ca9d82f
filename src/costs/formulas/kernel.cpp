// One kernel of any op.
#include <algorithm>

#include "espalier/ops/matmul_spec.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/util/error.hpp"
#include "formulas.hpp"

namespace espalier {
namespace {

/// The rate of our grouped matmuls on GPUs, as a share of dense ones of the same tiles: measured on an H200
/// (kernels/cuda/grouped_matmul.cu).
constexpr double kGroupedShare = 0.36;

/// On GPUs those in fp8 take the time of bf16: on Hopper their operands are widened to fp16 in registers (same file;
/// not measured).
double GroupedUs(const Cluster& cluster, MatmulShape shape) {
  const bool gpu = cluster.device == DeviceKind::kCuda;
  if (gpu && IsFp8(shape.dtype)) shape.dtype = Dtype::kBf16;
  const double share = cluster.grouped_share > 0 ? cluster.grouped_share : gpu ? kGroupedShare : 1;
  return MatmulUs(cluster.compute, shape) / share;
}

/// Bytes that a quantization does not read again, since other kernels have found the largest elements.
double BytesOfScales(const Cluster& cluster, const LocalOp& op) {
  if (!cluster.fused_scales || op.op.kind != OpKind::kQuantize || !QuantizeSpecOf(op.op.attributes).ReadsTwice())
    return 0;
  return double(SizeOf(op.dtype)) * double(Volume(op.inputs.at(0)));
}

/// The loss as many kernels over logits in fp32. With several ranks of a vocabulary it is three of our ops.
double LossPassesUs(const Cluster& cluster, const LocalOp& op) {
  const bool counts = op.op.kind == OpKind::kCrossEntropy || op.op.kind == OpKind::kLogitsSum;
  return counts ? MemoryUs(cluster.compute, cluster.loss_passes * 4 * double(Volume(op.inputs.at(0)))) : 0;
}

double AloneUs(const Cluster& cluster, const LocalOp& op, bool accumulate, const std::vector<double>& loads) {
  switch (op.op.kind) {
    case OpKind::kCrossEntropy:
    case OpKind::kCrossEntropyGrad:
    case OpKind::kLogitsMax:
    case OpKind::kLogitsSum:
      if (cluster.loss_passes > 0) return LossPassesUs(cluster, op);
      break;
    case OpKind::kMatmul:
      return MatmulUs(cluster.compute, MatmulShapeOf(op, accumulate));
    case OpKind::kGroupedMatmul:
      return GroupedUs(cluster, GroupedShapeOf(op, accumulate, loads));
    case OpKind::kAttention:
    case OpKind::kAttentionGrad:
      return cluster.attention == AttentionKernels::kPlain ? PlainAttentionUs(cluster, op)
                                                           : FusedAttentionUs(cluster.compute, op);
    default:
      break;
  }
  const Work::Bytes bytes = Define(op.op.kind).kernel.work.bytes;
  CHECK(bytes != nullptr, "{} has no formula of its time", op.op.kind);
  const double factor = op.op.frequency() == Frequency::kMicrobatch ? cluster.memory_factor : 1;
  return MemoryUs(cluster.compute, factor * (bytes(op, accumulate) - BytesOfScales(cluster, op)));
}

double Launched(const Cluster& cluster, double us) {
  return std::max((us + cluster.compute.kernel_us) / cluster.efficiency, cluster.compute.launch_us);
}

}  // namespace

MatmulShape MatmulShapeOf(const LocalOp& op, bool accumulate) {
  const Shape &a = op.inputs.at(0), &result = op.outputs.at(0);
  const int64_t size = SizeOf(op.dtype);
  MatmulShape s{.dtype = op.dtype, .result_bytes = double(SizeOf(op.output_dtypes.at(0))) * (accumulate ? 2 : 1)};
  s.n = result.back();
  s.m = s.n > 0 ? Volume(result) / s.n : 0;
  s.k = s.m > 0 ? Volume(a) / s.m : 0;
  // Dims along rows in memory: both of a weight. Tokens never are.
  s.batch = op.blocks * (MatmulSpecOf(op.op.attributes).HasMatrices() ? std::max<int64_t>(1, a[0]) : 1);
  s.m = (s.m + s.batch - 1) / s.batch;
  s.aligned = s.n * size % 16 == 0 && a.back() * size % 16 == 0;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.input_dtypes.at(i) == Dtype::kF8E8M0) s.scale_bytes += double(Volume(op.inputs[i]));
  return s;
}

MatmulShape GroupedShapeOf(const LocalOp& op, bool accumulate, const std::vector<double>& loads) {
  const bool of_weights = op.outputs.at(0).size() == 3;
  const Shape& weight = of_weights ? op.outputs[0] : op.inputs.at(1);
  const auto rows = static_cast<int64_t>(FilledShare(op.op.attributes) * double(Volume(op.inputs.at(2))));
  const int64_t size = SizeOf(op.dtype), width = op.inputs[0].back();
  MatmulShape s{.dtype = op.dtype, .result_bytes = double(SizeOf(op.output_dtypes.at(0))) * (accumulate ? 2 : 1)};
  s.batch = std::max<int64_t>(1, std::min(weight[0], rows));
  const int64_t each = (rows + s.batch - 1) / s.batch;
  s.m = of_weights ? weight[1] : each;
  s.n = of_weights ? weight[2] : op.outputs[0].back();
  s.k = of_weights ? each : width;
  s.aligned = s.n * size % 16 == 0 && width * size % 16 == 0;
  if (std::ssize(loads) == s.batch) s.loads = loads;  // with fewer rows than experts each has one
  s.loads_k = of_weights;
  return s;
}

double MatmulKernelUs(const Cluster& cluster, const MatmulShape& shape) {
  return Launched(cluster, MatmulUs(cluster.compute, shape));
}

/// GPUs have one batched kernel for the blocks of a matmul; any other kernel is launched once per block of rows.
double KernelUs(const Cluster& cluster, const LocalOp& op, bool accumulate, const std::vector<double>& loads) {
  const double us = AloneUs(cluster, op, accumulate, loads);
  if (TakesBlocks(op.op) && cluster.device == DeviceKind::kCuda) return Launched(cluster, us);
  return double(op.blocks) * Launched(cluster, us / double(op.blocks));
}

}  // namespace espalier
