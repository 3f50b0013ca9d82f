// Rough times of ops, for orders of ops that a deck gets whatever cluster it runs on. Predictions use costs/ instead.
#pragma once

#include "espalier/ops/op.hpp"

namespace espalier {

/// The latency of a collective, about 6 us.
inline constexpr double kRoughLatency = 5e9;

/// Time of an op on one rank, in floating-point operations of a matmul. On GPUs of 2020 to 2025 (A100, H100, B200) some
/// 200 of them take as long as a byte of memory, some 2000 as long as a byte from another GPU of the node, and 10,000
/// as long as one from another node; a collective has a latency. Only tp and cp are taken to be within a node. 0 for
/// an op without inputs, a send and a receive.
double RoughTime(const Graph& graph, const Op& op, const Mesh& mesh);

}  // namespace espalier
