// Relations between keys as data: the keys, and a function that describes a violation, with numbers.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct Relation {
  std::vector<std::string_view> keys;  ///< keys that it reads; an error is reported at the first
  std::string (*broken)(const Deck&);  ///< empty if the relation holds, otherwise what is wrong and what is allowed
};

/// The relations that can be checked without files and before the number of ranks is known; dp_shard = -1 counts as 1.
const std::vector<Relation>& DeckRelations();

/// The relations of model and dropout (model_relations.cpp); DeckRelations has them first.
const std::vector<Relation>& ModelRelations();

/// A step of `sequences` sequences on `data_parallel` ranks; `tokens` is left out (0).
BatchShape DivideBatch(int64_t sequences, int64_t micro, int64_t data_parallel);

/// The smallest normal fp32.
inline constexpr double kMinFloat = std::numeric_limits<float>::min();

/// Limits on the size of a deck (sizes.cpp); both lists contain them.
const std::vector<Relation>& SizeRelations();
inline constexpr double kMaxStepBytes =
    double(int64_t{1} << 58);  ///< limit of all tensors and messages of a step, over all ranks
inline constexpr double kMaxTokens = double(int64_t{1} << 62);  ///< limit of a run
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxPasses = 1 << 18;  ///< limit of microbatches times layers (and hops of a ring) in a step
inline constexpr int64_t kMaxRampSizes = 256;
inline constexpr int64_t kMaxRampPasses = 1 << 20;  ///< limit for the steps of all sizes together
inline constexpr int64_t kMaxPeers = 1 << 22;       ///< limit for all layers' collectives
inline constexpr int64_t kMaxRanks = 1 << 20;

/// The relations that involve the degrees; checked again when the number of ranks is known.
const std::vector<Relation>& MeshRelations();

}  // namespace espalier
