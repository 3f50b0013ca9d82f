// Where a run starts: its deck, its directory, and the checkpoints to try.
#pragma once

#include <string>
#include <vector>

#include "commands/commands.hpp"
#include "espalier/checkpoint/run_lock.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/deck/parse.hpp"

namespace espalier {

struct Start {
  LoadedDeck loaded;
  RunLock lock;                          ///< of run.dir, on rank 0
  std::vector<std::string> checkpoints;  ///< to try, best first; empty: fresh
  int64_t refused = 0;                   ///< better ones whose MANIFEST or deck could not be read

  const Deck& deck() const { return loaded.deck; }
};

/// `run.dir`/checkpoints.
std::string CheckpointFolder(const Deck& deck);

/// Reads the deck (a checkpoint's own deck stands below the user's), takes the directory, ends what a dead run left
/// there, and finds the checkpoints that the deck or the command line asks to restart from, stepping back over unreadable
/// ones as far as checkpoint.fallback allows. Collective.
Start FindStart(const RunOptions& options, World& world);

}  // namespace espalier
