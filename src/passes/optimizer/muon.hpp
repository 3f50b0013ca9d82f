// Which matrices Muon trains, and the ops of their updates.
#pragma once

#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/graph/graph.hpp"

namespace espalier {

/// A matrix, a table, or the matrices of experts; not a vector, nor one of each expert.
bool IsMatrix(const Value& parameter);

/// Whether Muon trains a parameter: with optimizer.name = "muon" the matrices of the layers, those of experts and
/// routers, too. Embeddings, learned positions, head and vectors have AdamW.
bool TrainsWithMuon(const Deck& deck, const Value& parameter);

/// A matrix, or those of all experts [e,n,k], with the reduced gradient, which has the layout of the optimizer state.
struct MuonMatrix {
  int parameter, gradient;
  int layer;
  double lr_factor, weight_decay;
};

/// Inputs that all updates share.
struct MuonScalars {
  int lr, scale, apply;
  int step;  ///< where moments are rounded stochastically; else -1
};

/// Appends the updates in role U.
void AppendMuon(Graph& graph, const Deck& deck, const std::vector<MuonMatrix>& matrices, const MuonScalars& scalars);

}  // namespace espalier
