// The parts that a search counts a model by: the embedding, the head, and each kind of layer.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// kEmbedding, kHead, or kFirstKind + i for the i-th of KindsOf.
using Part = size_t;
inline constexpr Part kEmbedding = 0, kHead = 1, kFirstKind = 2;

template <typename T>
using ByPart = std::vector<T>;

/// The parts of one chunk.
struct ChunkParts {
  ByPart<int64_t> count;    ///< how often each part is in the chunk
  Part first = kFirstKind;  ///< kind of its first layer
  Part last = kFirstKind;   ///< kind of its last layer
  int64_t Layers() const;
};

/// The chunks of a model with these layers per chunk: the embedding is in the first, the head in the last.
std::vector<ChunkParts> PartsOf(const Deck::Model& model, const std::vector<int64_t>& layers);

}  // namespace espalier
