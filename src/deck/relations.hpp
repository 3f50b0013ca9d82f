// Relations between keys as data: each names its keys and says what is wrong, with the numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct Relation {
  std::vector<std::string_view> keys;  ///< what it reads; the first is the one to blame
  std::string (*broken)(const Deck&);  ///< empty if it holds; else what is wrong and what is allowed
};

/// Those that need neither files nor a rank count.
const std::vector<Relation>& DeckRelations();

/// A broken relation of the mesh.
struct MeshMistake {
  std::string_view key;  ///< the one to blame; empty: the degrees as a whole
  std::string text;
};

/// Degrees against ranks, model and batch. `mesh` is set if they fit the ranks.
std::vector<MeshMistake> CheckMesh(const Deck& deck, int ranks, Mesh& mesh);

}  // namespace espalier
