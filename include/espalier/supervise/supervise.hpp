// A supervisor outside MPI: starts the ranks of a run through mpirun or srun, and starts them again when a rank or a
// host fails, on a spare host or in a layout for the hosts that are left. It neither computes nor holds state of the
// run: that is in checkpoints, and what the supervisor knows is in its ledger, so that it can be started again itself.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

struct SuperviseOptions {
  DeckArguments arguments;
  std::string hosts;       ///< "a:2,b:2" or "a,b"; empty: `hostfile`, the allocation of a job, or this host
  std::string hostfile;    ///< a line per host ("a slots=2") or per rank
  int spares = 0;          ///< hosts that wait until another one fails
  int ranks_per_host = 0;  ///< 0: as the hosts say
  std::string launch;      ///< words of the launcher, such as "srun --mpi=pmix"; empty: chosen
  std::string cluster;     ///< cluster file: layouts for fewer hosts are the fastest on it; empty: the nearest ones
  std::string program;     ///< what the ranks run; empty: this executable
  int tries = 3;           ///< starts in a row without a further step, after which it gives up
  int host_failures = 3;   ///< failures of one host, after which it is not used again
  double probe_s = 15;     ///< how long a host may take to answer
};

/// Runs the deck to its end. Returns the exit status of the run's last start, or kFault if it gives up or runs out of
/// hosts. Throws UserError: kDeck for wrong hosts, options and decks, kFault if another supervisor or run is in the run
/// directory.
ExitStatus Supervise(const SuperviseOptions& options);

struct OnHostOptions {
  std::string run_dir;
  std::string memory;  ///< folder of states in memory to remove; empty: none
  double since = 0;    ///< seconds since 1970: shared memory of MPI that is older belongs to other jobs
};

/// On one host, between two starts of a run: ends the processes that earlier starts have left, and removes the shared
/// memory that no process uses any more. Nothing that is missing is an error.
void CleanHost(const OnHostOptions& options);

}  // namespace espalier
