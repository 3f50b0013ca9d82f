// The parts that a search counts a model by: the embedding, the head, layers for further tokens, and each kind of
// layer.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// kEmbedding, kHead, kFurther, or kFirstKind + i for the i-th of KindsOf.
using Part = size_t;
inline constexpr Part kEmbedding = 0, kHead = 1, kFurther = 2, kFirstKind = 3;

template <typename T>
using ByPart = std::vector<T>;

/// The parts of one chunk.
struct ChunkParts {
  ByPart<int64_t> count;    ///< how often each part is in the chunk
  Part first = kFirstKind;  ///< kind of its first layer
  Part last = kFirstKind;   ///< kind of its last layer; kFurther: it predicts further tokens
  int64_t Layers() const;
};

/// The chunks of a model with these layers per chunk: the embedding is in the first, the head in the last, with layers
/// for further tokens.
std::vector<ChunkParts> PartsOf(const Deck::Model& model, const std::vector<int64_t>& layers);

}  // namespace espalier
