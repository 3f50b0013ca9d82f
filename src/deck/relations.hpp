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

/// Those that need no files. A rank count may be missing too: dp_shard = -1 then counts as 1.
const std::vector<Relation>& DeckRelations();

/// Those of them that the degrees take part in: to be checked again when the rank count is known.
const std::vector<Relation>& MeshRelations();

}  // namespace espalier
