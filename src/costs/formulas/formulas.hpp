// Times by formula, from the keys of a cluster file alone. Every formula rises with the work and falls with rates, but
// for one step that kernels have, too: operands whose rows are no multiple of 16 bytes are slower (misaligned_share).
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/costs/cluster.hpp"
#include "espalier/costs/cost_table.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

using DeviceModel = Cluster::Device;

/// Reading and writing so many bytes: bytes / (bandwidth share(bytes)).
double MemoryUs(const DeviceModel& device, double bytes);

/// `batch` products of [m, k] and [k, n] side by side, one kernel.
struct MatmulShape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  Dtype dtype = Dtype::kBf16;  ///< of the operands
  double result_bytes = 2;     ///< per element of the result: 4 if fp32, 8 if it is added to what is there
  bool aligned = true;         ///< rows of all operands are multiples of 16 bytes
  double scale_bytes = 0;      ///< of blocks of fp8, both operands; other scales are too few to count
  /// In a grouped matmul the rows of each expert, relative to their mean; empty: all have as many. They are `m`, or
  /// `k` for the gradient of weights.
  std::vector<double> loads = {};
  bool loads_k = false;
};
/// Roofline: the slower of the multiplications, by tiles and waves, and of the bytes.
double MatmulUs(const DeviceModel& device, const MatmulShape& shape);
/// A matmul of tokens [b, s, k] and a weight, or of two such tensors: the gradient of a weight.
MatmulShape MatmulShapeOf(const LocalOp& op, bool accumulate);
/// A grouped matmul: a product for each expert with rows.
MatmulShape GroupedShapeOf(const LocalOp& op, bool accumulate, const std::vector<double>& loads = {});

/// Attention or its gradient as fused kernels (FlashAttention: Dao 2023; Shah et al. 2024): flops over the curve of
/// their rate.
double FusedAttentionUs(const DeviceModel& device, const LocalOp& op);
/// The same as matmuls batched by heads, with the scores in memory between them; one kernel each. The gradient reads
/// kept probabilities.
double PlainAttentionUs(const Cluster& cluster, const LocalOp& op);
/// The forward pass of the attention whose gradient `grad` is, as plain kernels: what keeping no probabilities costs.
double PlainAttentionAgainUs(const Cluster& cluster, const LocalOp& grad);

/// Any kernel, by the efficiency of the stack and with its launch.
double KernelUs(const Cluster& cluster, const LocalOp& op, bool accumulate, const std::vector<double>& loads = {});

/// As above, for one matmul of this shape.
double MatmulKernelUs(const Cluster& cluster, const MatmulShape& shape);

/// Costs::Collective and Costs::Message by formula.
double CollectiveUs(const Cluster& cluster, OpKind kind, double wire_bytes, const GroupPlace& place);
double MessageUs(const Cluster& cluster, double bytes, bool same_node);

}  // namespace espalier
