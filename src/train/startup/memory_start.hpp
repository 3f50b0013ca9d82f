// Whether a start continues from a copy in memory (checkpoint.memory_steps), and why not.
#pragma once

#include <string>
#include <vector>

#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// The checkpoints that the start would otherwise continue from.
struct DiskLine {
  int64_t step = -1;             ///< step of the first; -1: there is none
  std::string branch;            ///< as Start::branch
  std::vector<std::string> ids;  ///< of all

  auto Fields() { return std::tie(step, branch, ids); }
};

/// Reads the MANIFESTs of `checkpoints`; those that cannot be read are left out.
DiskLine ReadDiskLine(const std::vector<std::string>& checkpoints, const std::string& branch);

/// Why the run does not continue from `generation`; empty if it does. It continues if the generation is of the same
/// line, not older than its checkpoints, and not beyond run.steps.
std::string WhyNotFromMemory(const MemoryGeneration& generation, const DiskLine& disk, const Deck& deck);

/// The id of the run directory for its copies in memory: from the file run.dir/memory-run, which is made if it is
/// missing. For the owner of the directory.
std::string MemoryRunId(const Deck& deck);
/// Removes that file.
void RemoveMemoryRunId(const Deck& deck);

}  // namespace espalier
