// --slow-rank, --slow-link and --slow-node.
#pragma once

#include <string>
#include <vector>

#include "espalier/simulate/simulate.hpp"

namespace espalier {

/// As typed: "R=FACTOR" each.
struct SlowArguments {
  std::vector<std::string> ranks;  ///< kernels of a rank
  std::vector<std::string> links;  ///< transfers of a rank
  std::vector<std::string> nodes;  ///< kernels and transfers of all ranks of a node
};

/// Throws UserError (kDeck): names every argument that is no "number=factor", or whose number is not below the number
/// of ranks or nodes, or whose factor is below 1.
std::vector<Slow> ReadSlowParts(const SlowArguments& arguments, int ranks, int ranks_per_node);

}  // namespace espalier
