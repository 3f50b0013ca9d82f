#include "espalier/model/model.hpp"

#include "espalier/util/error.hpp"
#include "families.hpp"

namespace espalier {

Model BuildModel(const Deck& deck, const Split& split, int64_t batch, Purpose purpose) {
  if (deck.model.family == "llama") return BuildLlama(deck, split, batch, purpose);
  if (deck.model.family == "gpt2") return BuildGpt2(deck, split, batch, purpose);
  throw UserError(ExitStatus::kDeck, fmt::format("model.family = \"{}\": allowed: llama, gpt2", deck.model.family));
}

int64_t ParameterCount(const Model& model) {
  int64_t count = 0;
  for (const std::string& name : model.parameters)
    count += Volume(model.graph.values[model.graph.Find("parameters/" + name)].type.shape);
  return count;
}

}  // namespace espalier
