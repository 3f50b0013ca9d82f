// Which matmuls of a compiled graph are in fp8 (precision.matmul = "fp8").
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "espalier/deck/choices.hpp"
#include "espalier/graph/graph.hpp"

namespace espalier {

struct Fp8Matmuls {
  int64_t in_fp8 = 0;             ///< matmuls of one microbatch, all layers; a strip is one, further passes are none
  int64_t in_bf16 = 0;            ///< selected, but a rank's shard does not suit fp8
  std::set<std::string> weights;  ///< of those in bf16
  int64_t expert_gradients = 0;   ///< selected, but gradients of experts' weights have no matmul in fp8
};

/// Counts the matmuls of a graph after all passes.
Fp8Matmuls CountFp8Matmuls(const Graph& graph);

/// "84 matmuls of a microbatch; 6 stay in bf16, where sizes on a rank are no multiples of 16 or values are partial
/// sums:
/// ...k_proj.weight". Names that differ only in the number of a layer are one, with * in its place.
std::string Describe(const Fp8Matmuls& matmuls, Fp8Scaling scaling);

}  // namespace espalier
