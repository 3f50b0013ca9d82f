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
constexpr double kNever = 1e300;    // a load that no chunk has

/// How good a split is: the largest load counts first, then the sum of squares.
struct Score {
  double largest = 0, squares = 0;
};
bool IsBetter(const Score& a, const Score& b) {
  if (std::abs(a.largest - b.largest) > kRounding * b.largest) return a.largest < b.largest;
  return a.squares < b.squares * (1 - kRounding);
}

/// Loads of the layers by FLOPs per token, in units of the heaviest; the last includes the head and what runs with it.
std::vector<double> LoadsOf(const Deck::Model& m) {
  std::vector<double> loads;
  for (int layer = 1; layer <= m.layers; ++layer) {
    const LayerFlops flops = LayerFlopsPerToken(m, KindOf(m, layer));
    loads.push_back(flops.matmuls + flops.attention);
  }
  const double unit = *std::ranges::max_element(loads);
  const LayerFlops further = FurtherFlopsPerToken(m);
  loads.back() += HeadFlopsPerToken(m) + further.matmuls + further.attention;
  for (double& load : loads) load /= unit;
  return loads;
}

/// Layers per chunk with the best score; among equal splits, the one with more layers in earlier chunks. Dynamic
/// programming from the last chunk to the first: `best[at]` is the score of the chunks from here on, if the chunks
/// before have `at` layers more than one each.
std::vector<int64_t> Balance(const Deck::Model& m, int chunks) {
  const std::vector<double> loads = LoadsOf(m);
  const size_t spare = loads.size() - static_cast<size_t>(chunks);
  std::vector<Score> best(spare + 1, {kNever, 0});
  best[spare] = {};  // after the last chunk no layer is left
  std::vector<std::vector<size_t>> more(static_cast<size_t>(chunks), std::vector<size_t>(spare + 1));
  for (size_t chunk = more.size(); chunk-- > 0;) {
    const std::vector<Score> rest = std::exchange(best, std::vector<Score>(spare + 1, {kNever, 0}));
    for (size_t at = 0; at <= spare; ++at) {
      double load = 0;
      for (size_t to = at; to <= spare && load <= best[at].largest * (1 + kRounding); ++to) {
        load += loads[chunk + to];
        const Score score{std::max(load, rest[to].largest), load * load + rest[to].squares};
        if (IsBetter(best[at], score)) continue;
        best[at] = score;
        more[chunk][at] = to - at;
      }
    }
  }
  std::vector<int64_t> layers;
  size_t at = 0;
  for (const std::vector<size_t>& of_chunk : more) {
    layers.push_back(1 + static_cast<int64_t>(of_chunk[at]));
    at += of_chunk[at];
  }
  return layers;
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
