#include "commands/cli/first_rank.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "espalier/train/stop_signals.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

int ReadLauncherRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

int& Rank() {
  static int rank = ReadLauncherRank();
  return rank;
}

/// For a command that does not start MPI. A process started from a job's shell inherits the rank variables of that
/// shell, so the rank counts only in an mpirun world of several processes.
int CommandRank() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size == nullptr || std::atoi(size) < 2) Rank() = 0;
  return Rank();
}

}  // namespace

int LauncherRank() { return Rank(); }

CommandJob OnFirstRank(CommandJob job) {
  return [job = std::move(job)] {
    ReleaseStopSignals();
    return CommandRank() == 0 ? job() : static_cast<int>(ExitStatus::kDone);
  };
}

CommandJob OnEveryRank(CommandJob job) {
  return [job = std::move(job)] {
    ReleaseStopSignals();
    if (CommandRank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) std::fclose(stdout);
    return job();
  };
}

CommandJob OnRanksOfJob(CommandJob job) {
  return [job = std::move(job)] {
    ReleaseStopSignals();
    return job();
  };
}

}  // namespace espalier
