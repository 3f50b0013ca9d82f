#include "espalier/model/model.hpp"

#include "espalier/graph/provenance.hpp"
#include "espalier/util/error.hpp"
#include "families.hpp"

namespace espalier {

Model BuildModel(const Deck& deck, const Split& split, int64_t batch, Purpose purpose, int64_t tokens) {
  CHECK(tokens == deck.model.seq_len || purpose == Purpose::kSample, "{} tokens of {}", tokens, deck.model.seq_len);
  const Forward forward{batch, tokens, purpose};
  switch (deck.model.family) {
    case Family::kLlama:
      return BuildLlama(deck, split, forward);
    case Family::kGpt2:
      return BuildGpt2(deck, split, forward);
  }
  CHECK(false, "unknown model family");
}

int64_t ParameterCount(const Model& model) {
  int64_t count = 0;
  for (const std::string& name : model.parameters)
    count += Volume(model.graph.value(model.graph.Find(StateName(name))).type.shape);
  return count;
}

}  // namespace espalier
