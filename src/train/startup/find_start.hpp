// Where a run starts: its deck, its data, its directory, and the checkpoints to try.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/checkpoint/run_lock.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/train/trainer.hpp"
#include "train/startup/run_data.hpp"

namespace espalier {

struct Start {
  LoadedDeck loaded;
  RunData data;                          ///< empty if there is nothing to do
  RunLock lock;                          ///< lock of run.dir, on rank 0
  std::vector<std::string> checkpoints;  ///< to try, best first; empty: a fresh start
  int64_t refused = 0;                   ///< newer checkpoints whose MANIFEST or deck could not be read
  std::optional<int64_t> beyond;  ///< the checkpoint's step if it is after run.steps, so that nothing is left to do
  std::string branch;  ///< id of the checkpoint that the command line names; empty: it names none, or one of this run

  std::unique_ptr<MemoryNodes> memory;         ///< null: checkpoint.memory_steps is 0
  std::optional<MemoryGeneration> generation;  ///< in memory, to try before `checkpoints`

  bool IsFresh() const { return checkpoints.empty() && !generation; }
  const Deck& deck() const { return loaded.deck; }
};

/// `run.dir`/checkpoints.
std::string CheckpointFolder(const Deck& deck);

/// An earlier start in run.dir began at this checkpoint (named by -r) and has saved since: if it is named again, the
/// run continues from its latest checkpoint instead.
bool HasBegunAt(const Deck& deck, const std::string& checkpoint);

/// Reads the deck and compares it with the decks of all ranks, with the number of ranks, and with the checkpoint to
/// restart from. Opens the data. A run that cannot continue is refused, and a run that is already done is detected
/// (`beyond`), before any file is written. Then locks the run directory, cleans up after a killed run, and finds the
/// checkpoints to try, skipping unreadable ones as far as checkpoint.fallback allows, and the copies in memory.
/// Collective.
Start FindStart(const RunOptions& options, World& world);

}  // namespace espalier
