#include "passes/optimizer/moments.hpp"

#include <fmt/core.h>

#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

constexpr std::string_view kParameters = "parameters/", kStates = "optimizer/";

std::string NameOf(const Graph& graph, int parameter) { return graph.value(parameter).name.substr(kParameters.size()); }

}  // namespace

int AddMoment(Graph& graph, const Deck& deck, int parameter, const std::string& moment) {
  const Value& master = graph.value(parameter);
  Type type = master.type;
  type.dtype = deck.precision.moments;
  return graph.AddValue({fmt::format("{}{}/{}", kStates, moment, NameOf(graph, parameter)), type, ValueKind::kState,
                         Frequency::kStep, master.chunk, -1, master.layout});
}

void SetRounding(const Graph& graph, const Deck& deck, int parameter, Attributes& attributes) {
  if (deck.precision.moments == Dtype::kF32) return;
  const uint64_t key = StreamKey(deck.run.seed, fmt::format("{}{}", kStates, NameOf(graph, parameter)));
  attributes.texts["rounding"] = fmt::format("{:016x}", key);
}

}  // namespace espalier
