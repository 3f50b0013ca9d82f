// The optimizer's moments as states of the graph.
#pragma once

#include <string>

#include "espalier/deck/deck.hpp"
#include "espalier/graph/graph.hpp"

namespace espalier {

/// Adds the state "optimizer/MOMENT/NAME" of a parameter, of type precision.moments; returns its id.
int AddMoment(Graph& graph, const Deck& deck, int parameter, const std::string& moment);

/// Sets attribute `rounding` of an update whose moments are bf16: the key of the parameter's random bits, 16 hex digits
/// (src/kernels/stochastic_rounding.hpp). merge_updates concatenates them.
void SetRounding(const Graph& graph, const Deck& deck, int parameter, Attributes& attributes);

}  // namespace espalier
