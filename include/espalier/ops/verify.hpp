// The invariants of a graph between any two passes.
#pragma once

#include <string_view>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/graph/signature.hpp"

namespace espalier {

/// Checks op kinds and arities, that roles, layers and chunks are set and in range, that values are defined before use,
/// that types equal what each op's own rule infers, that frequencies are consistent, and that no partial value is
/// written to a state. Throws InvariantError naming `after` (the pass), the op and what is wrong.
void Verify(const Graph& graph, std::string_view after);

/// Verifies a graph again after every pass. Ops with equal kind, attributes and types are checked once.
class RepeatedVerifier {
 public:
  /// Verify.
  void Verify(const Graph& graph, std::string_view after);

 private:
  Signatures signatures_;
  std::vector<bool> sound_;  ///< by signature: its types follow the op's rule
};

}  // namespace espalier
