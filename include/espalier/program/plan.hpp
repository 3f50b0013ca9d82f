// Everything that can be said of a run before it starts, for any number of ranks, in one process: the programs of all
// classes of ranks, proven to fit together, and what they need.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "espalier/program/compile.hpp"

namespace espalier {

struct StagePlan {
  int stage = 0;
  std::vector<int> layers;  ///< transformer layers, from 0
  int64_t peak_bytes = 0;   ///< largest of the stage's ranks
  std::array<int64_t, kMemoryClassCount>
      bytes{};  ///< by class at the peak of that rank; holes between buffers are left out
};

struct WorldPlan {
  Compilation training;
  std::vector<int> representative;  ///< by rank: the lowest rank with the same program
  std::map<int, Program> programs;  ///< by representative
  std::vector<StagePlan> stages;
  std::vector<int64_t> rank_peak_bytes;          ///< training, proof and, if the deck asks for it, evaluation
  int64_t peak_bytes = 0;                        ///< largest of all ranks
  std::map<std::string, MessageCount> messages;  ///< by lane: the rank that sends most bytes there
};

/// True if the deck evaluates during training, so that programs for it are planned too.
bool Evaluates(const Deck& deck);

/// The programs that a run of the deck has: training, proof and, if it evaluates, evaluation.
std::vector<Purpose> PurposesOf(const Deck& deck);

/// Makes the program of every class of ranks and checks the world with them. Returns why not if those are too many for
/// one process; empty: proven. Throws InvariantError.
std::string ProveWorld(const Compilation& compilation);

/// Compiles a deck for `ranks` ranks and checks the world. Throws UserError (kDeck) or InvariantError.
WorldPlan PlanWorld(const Deck& deck, int ranks);

}  // namespace espalier
