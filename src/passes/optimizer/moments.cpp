#include "passes/optimizer/moments.hpp"

#include <fmt/core.h>

#include "espalier/graph/provenance.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {

int AddMoment(Graph& graph, const Deck& deck, int parameter, const std::string& moment) {
  const Value& master = graph.value(parameter);
  Type type = master.type;
  type.dtype = deck.precision.moments;
  return graph.AddValue({MomentName(moment, ParameterOf(master)), type, ValueKind::kState, Frequency::kStep,
                         master.chunk, -1, master.layout});
}

void SetRounding(const Graph& graph, const Deck& deck, int parameter, Attributes& attributes) {
  if (deck.precision.moments == Dtype::kF32) return;
  const uint64_t key =
      StreamKey(deck.run.seed, fmt::format("{}{}", kMomentPrefix, ParameterOf(graph.value(parameter))));
  attributes.texts["rounding"] = fmt::format("{:016x}", key);
}

}  // namespace espalier
