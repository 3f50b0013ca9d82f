// Which rank of the job this process is, and which ranks do the work of a command.
#pragma once

#include <functional>

namespace espalier {

/// The work of a command: returns the exit status of the process.
using CommandJob = std::function<int()>;

/// This process's rank as the launcher states it in the environment; 0 without a launcher. Read at the first call,
/// which must come before MPI starts, since that may change the environment.
int LauncherRank();

/// For commands that need one process: rank 0 does `job`, the other ranks do nothing. A signal ends the command.
CommandJob OnFirstRank(CommandJob job);

/// For commands whose exit status every rank needs: all ranks do `job`, and only rank 0 prints. A signal ends it.
CommandJob OnEveryRank(CommandJob job);

/// For commands of many ranks that end at a signal: all ranks do `job`, which starts MPI.
CommandJob OnRanksOfJob(CommandJob job);

}  // namespace espalier
