#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "espalier/model/flops.hpp"
#include "espalier/model/model.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr double kRounding = 1e-9;  // relative: loads that differ by less are equal

/// How good a split is: the largest load counts first, then the sum of squares.
struct Score {
  double largest = 0, squares = 0;
};
bool IsBetter(const Score& a, const Score& b) {
  if (std::abs(a.largest - b.largest) > kRounding * b.largest) return a.largest < b.largest;
  return a.squares < b.squares * (1 - kRounding);
}

/// Loads of the layers by FLOPs per token, in units of the heaviest; the last includes the head.
std::vector<double> LoadsOf(const Deck::Model& m) {
  std::vector<double> loads;
  for (int layer = 1; layer <= m.layers; ++layer) {
    const LayerFlops flops = LayerFlopsPerToken(m, KindOf(m, layer));
    loads.push_back(flops.matmuls + flops.attention);
  }
  const double unit = *std::ranges::max_element(loads);
  loads.back() += HeadFlopsPerToken(m);
  for (double& load : loads) load /= unit;
  return loads;
}

/// Layers per chunk with the best score; of equal splits the one with more layers in earlier chunks. Dynamic
/// programming from the last chunk to the first. `at` counts layers before a chunk beyond one for each chunk before.
std::vector<int64_t> Balance(const Deck::Model& m, int chunks) {
  const std::vector<double> loads = LoadsOf(m);
  const int layers = static_cast<int>(loads.size()), spare = layers - chunks;
  std::vector<Score> best(static_cast<size_t>(spare) + 1), next;
  std::vector<std::vector<int>> taken(static_cast<size_t>(chunks), std::vector<int>(best.size()));
  for (int at = 0; at <= spare; ++at) {
    const double load = std::accumulate(loads.begin() + chunks - 1 + at, loads.end(), 0.0);
    best[static_cast<size_t>(at)] = {load, load * load};
    taken.back()[static_cast<size_t>(at)] = layers - (chunks - 1 + at);
  }
  for (int chunk = chunks - 2; chunk >= 0; --chunk) {
    next = std::exchange(best, std::vector<Score>(best.size()));
    for (int at = 0; at <= spare; ++at) {
      double load = 0;
      for (int n = 1; at + n - 1 <= spare; ++n) {
        load += loads[static_cast<size_t>(chunk + at + n - 1)];
        const Score& rest = next[static_cast<size_t>(at + n - 1)];
        const Score score{std::max(load, rest.largest), load * load + rest.squares};
        Score& found = best[static_cast<size_t>(at)];
        // No worse: more layers in this chunk.
        if (n > 1 && IsBetter(found, score)) {
          if (load > found.largest * (1 + kRounding)) break;
          continue;
        }
        found = score;
        taken[static_cast<size_t>(chunk)][static_cast<size_t>(at)] = n;
      }
    }
  }
  std::vector<int64_t> split;
  for (int chunk = 0, at = 0; chunk < chunks; ++chunk) {
    split.push_back(taken[static_cast<size_t>(chunk)][static_cast<size_t>(at)]);
    at += static_cast<int>(split.back()) - 1;
  }
  return split;
}

}  // namespace

std::vector<int64_t> Split::LayersOfChunks() const {
  std::vector<int64_t> layers(static_cast<size_t>(chunks));
  for (size_t l = 1; l + 1 < chunk_of_layer.size(); ++l) ++layers[static_cast<size_t>(chunk_of_layer[l])];
  return layers;
}

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
