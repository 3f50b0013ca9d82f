// A compilation in two halves, for decks that differ in [recompute] alone: they share the first one.
#pragma once

#include "espalier/program/compile.hpp"

namespace espalier {

/// The model after the passes before `recompute`, which know nothing of [recompute]. Nothing is verified: its programs
/// are only read.
class HalfCompilation {
 public:
  /// As Compile, for the device of the deck.
  HalfCompilation(const Deck& deck, int ranks, Purpose purpose);
  /// The whole compilation.
  Compilation With(const Deck::Recompute& recompute) const;

 private:
  Compilation compilation_;  ///< without its graph
  Graph graph_;
};

}  // namespace espalier
