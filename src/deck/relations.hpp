// Relations between keys as data: each names its keys and says what is wrong, with the numbers.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct Relation {
  std::vector<std::string_view> keys;  ///< what it reads; the first is the one to blame
  std::string (*broken)(const Deck&);  ///< empty if it holds; else what is wrong and what is allowed
};

/// Those that need no files. A rank count may be missing too: dp_shard = -1 then counts as 1.
const std::vector<Relation>& DeckRelations();

/// The batch on so many data-parallel ranks; `tokens` is left out (0).
BatchShape DivideBatch(const Deck::Batch& batch, int64_t data_parallel);

/// The smallest fp32 of full precision.
inline constexpr double kLeastFloat = std::numeric_limits<float>::min();

/// How large a deck may be (sizes.cpp): part of both lists.
const std::vector<Relation>& SizeRelations();
inline constexpr double kMostStepBytes =
    double(int64_t{1} << 58);  ///< of all tensors and messages of a step, over all ranks
inline constexpr double kMostTokens = double(int64_t{1} << 62);  ///< of a run
inline constexpr int64_t kMostLayers = 4096;
inline constexpr int64_t kMostPasses = 1 << 18;  ///< of microbatches through layers (and hops of a ring) in a step
inline constexpr int64_t kMostPeers = 1 << 22;   ///< of all layers' collectives
inline constexpr int64_t kMostRanks = 1 << 20;

/// Those of them that the degrees take part in: to be checked again when the rank count is known.
const std::vector<Relation>& MeshRelations();

}  // namespace espalier
