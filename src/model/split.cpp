#include <algorithm>
#include <numeric>

#include "espalier/model/flops.hpp"
#include "espalier/model/model.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Layers per chunk that minimise the largest load; of equal splits the one with more layers in earlier chunks.
std::vector<int64_t> Balance(const Deck::Model& m, int chunks) {
  const ForwardFlops flops = ForwardFlopsPerToken(m);
  const double layer = flops.matmuls + flops.attention;
  std::vector<int64_t> layers(chunks, 1);
  std::vector<double> load(chunks, layer);
  load.back() += flops.head;
  for (int64_t l = chunks; l < m.layers; ++l) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    ++layers[least];
    load[least] += layer;
  }
  return layers;
}

}  // namespace

Split SplitLayers(const Deck& deck, int chunks) {
  std::vector<int64_t> layers = deck.pipeline.split;
  if (layers.empty()) layers = Balance(deck.model, chunks);
  CHECK(std::ssize(layers) == chunks, "split into {} chunks, expected {}", layers.size(), chunks);
  CHECK(std::accumulate(layers.begin(), layers.end(), int64_t{0}) == deck.model.layers,
        "split does not sum to the layers");
  Split split{{0}, chunks};
  for (int c = 0; c < chunks; ++c) split.chunk_of_layer.insert(split.chunk_of_layer.end(), layers[c], c);
  split.chunk_of_layer.push_back(chunks - 1);
  return split;
}

}  // namespace espalier
