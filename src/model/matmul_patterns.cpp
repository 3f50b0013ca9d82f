#include "espalier/model/matmul_patterns.hpp"

#include <algorithm>

#include "espalier/deck/parameter_groups.hpp"
#include "espalier/graph/provenance.hpp"

namespace espalier {

bool IsInFp8(const Deck::Precision& precision, std::string_view weight) {
  return precision.matmul == MatmulPrecision::kFp8 &&
         std::ranges::none_of(precision.bf16_matmuls,
                              [&](const std::string& pattern) { return MatchesParameter(pattern, weight); });
}

std::vector<std::string> MatmulNames(const Model& model) {
  std::vector<std::string> names;
  for (const Op& op : model.graph.ops) {
    if (op.kind != OpKind::kMatmul && op.kind != OpKind::kGroupedMatmul) continue;
    names.emplace_back(ParameterOf(model.graph.value(op.inputs[1])));
  }
  // The head comes last. If it is tied, its weight has another name.
  if (!names.empty()) names.back() = kHeadMatmul;
  return names;
}

}  // namespace espalier
