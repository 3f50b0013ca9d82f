// Layouts for a job that has lost nodes and has no spares: the same model, global batch and samples on fewer nodes. Any
// layout loads the checkpoint of any other, so a supervisor can start one of these in place of the deck's own.
//
// A number of nodes may have no good layout, or none at all: 31 nodes of 8 are 248 ranks, and 31 divides neither the
// batch nor the layers. So for each number of nodes left the search looks at all smaller numbers that may be faster,
// first by formula, and compiles and simulates layouts for the best of them. The nodes that it leaves out are spares
// for the next failure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/tune/tune.hpp"

namespace espalier {

struct FallbackOptions {
  int losses = 2;  ///< layouts for the loss of 1, 2, ..., `losses` nodes; fewer than the job has
  TuneOptions tune = {.simulated = 24, .instructions = 1'000'000};
};

/// The best layout after the loss of `lost` nodes.
struct Fallback {
  int lost = 0;
  int left = 0;                          ///< nodes that are left
  int nodes = 0, ranks = 0;              ///< that the layout uses; the rest are spares
  std::optional<Candidate> layout = {};  ///< nothing: none is valid and fits
  int Spares() const { return left - nodes; }
};

/// Nodes of a job: ranks fill nodes in order, `ranks_per_node` of the cluster each.
int NodesOf(int ranks, const Cluster& cluster);

/// One for each number of lost nodes, ascending. `deck` runs on `ranks` ranks today. CHECKs that fewer nodes are lost
/// than the job has. Throws UserError as Tune for unknown fixed keys. AsDeck writes a layout as a deck to give after
/// `deck`. Pure and deterministic; it takes some seconds for each number of nodes.
std::vector<Fallback> FallbackLayouts(const Deck& deck, int ranks, const Costs& costs,
                                      const FallbackOptions& options = {});

}  // namespace espalier
