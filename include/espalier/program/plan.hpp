// The facts of a run that are known before it starts, for any number of ranks, in one process: the programs of all
// classes of ranks, proven to match, and the memory and messages that they need.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "espalier/program/compile.hpp"

namespace espalier {

struct StagePlan {
  int stage = 0;
  std::vector<int> layers;  ///< transformer layers, from 0
  int64_t peak_bytes = 0;   ///< largest of the stage's ranks
  /// By class at the peak of that rank; holes between buffers are not counted.
  ByMemoryClass<int64_t> bytes{};
  /// The memory of the host, with the copies of a step, on the rank that has most there.
  int64_t host_bytes = 0;
  ByMemoryClass<int64_t> host_bytes_by_class{};
  BySpace<int64_t> copied_bytes{};  ///< by where they go
};

/// Bytes that the copies of a program move in a step, by where they go.
BySpace<int64_t> CopiedBytes(const Program& program);

struct WorldPlan {
  Compilation training;             ///< with batch.global sequences
  std::vector<int> representative;  ///< by rank: the lowest rank with the same program
  std::map<int, Program> programs;  ///< by representative
  std::vector<StagePlan> stages;
  std::vector<int64_t> rank_peak_bytes;          ///< the largest of all programs of a run
  int64_t peak_bytes = 0;                        ///< largest of all ranks
  std::vector<int64_t> rank_host_bytes;          ///< the same of the arena on the host; 0: nothing is there
  int64_t host_bytes = 0;                        ///< largest of all ranks
  std::map<std::string, MessageCount> messages;  ///< by lane: those of the rank that sends the most bytes on it
};

/// True if the deck evaluates during training, so that evaluation programs are planned too.
bool Evaluates(const Deck& deck);

/// True if weights are copied to the compute type, so that a program that makes the copies is planned too.
bool CopiesWeights(const Deck& deck);

/// True if ranks compare what they compute (guard.recompute_steps), so that the program of their gradients is planned.
bool ComparesComputation(const Deck& deck);

/// A program of a run, as Compile takes it.
struct ProgramOfRun {
  Purpose purpose;
  Deck deck;
};

/// The programs that a run of the deck has: training with batch.global sequences, proof, evaluation if it evaluates,
/// training with every smaller size of the batch ramp, copies if it copies weights, and gradients if ranks compare what
/// they compute.
std::vector<ProgramOfRun> ProgramsOfRun(const Deck& deck);

/// Makes the program of every class of ranks and runs CheckWorld on them. Returns "" if that proved them, or the reason
/// why there are too many programs for one process. Throws InvariantError.
std::string ProveWorld(const Compilation& compilation);

/// Compiles a deck for `ranks` ranks and checks the world. Throws UserError (kDeck) or InvariantError.
WorldPlan PlanWorld(const Deck& deck, int ranks);

}  // namespace espalier
