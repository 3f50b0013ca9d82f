// Where a run starts: its deck, its data, its directory, and the checkpoints to try.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/checkpoint/run_lock.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/train/trainer.hpp"
#include "train/startup/run_data.hpp"

namespace espalier {

struct Start {
  LoadedDeck loaded;
  RunData data;                          ///< unless there is nothing to do
  RunLock lock;                          ///< of run.dir, on rank 0
  std::vector<std::string> checkpoints;  ///< to try, best first; empty: fresh
  int64_t refused = 0;                   ///< better ones whose MANIFEST or deck could not be read
  std::optional<int64_t> beyond;         ///< the checkpoint's step if it is after run.steps: there is nothing to do
  std::string branch;  ///< id of the checkpoint that the command line names; empty: none, or the run only goes on

  const Deck& deck() const { return loaded.deck; }
};

/// `run.dir`/checkpoints.
std::string CheckpointFolder(const Deck& deck);

/// Reads the deck and compares it with those of all ranks, with their number and with the checkpoint that it asks to
/// restart from: what cannot go on from there is refused, or found done (`beyond`), before anything is touched. So is
/// what is wrong with the data, which are opened here. Then takes the directory,
/// ends what a dead run left there, and finds the checkpoints to try, stepping back over unreadable ones as far as
/// checkpoint.fallback allows. Collective.
Start FindStart(const RunOptions& options, World& world);

}  // namespace espalier
