#include "train/startup/check_launcher.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "espalier/util/agreed_error.hpp"

namespace espalier {
namespace {

int Number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

struct Launch {
  std::string variable;
  int processes = 0;
};

/// How many processes the launcher started with this one. SLURM_NTASKS is also set in a batch script, for the whole
/// job; it counts only in a task of srun, which has a rank above 0.
Launch LaunchOfThis() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (std::getenv(name) != nullptr) return {name, Number(name)};
  return {"SLURM_NTASKS", Number("SLURM_PROCID") > 0 ? Number("SLURM_NTASKS") : 0};
}

}  // namespace

void CheckLauncher(int ranks) {
  const Launch launch = LaunchOfThis();
  if (launch.processes <= ranks) return;
  throw AgreedError(
      ExitStatus::kDeck,
      fmt::format(
          "launcher: {} = {}, but MPI has found {} rank{}: each process would train alone. Start with srun --mpi=pmix "
          "(srun "
          "--mpi=list names what Slurm has), or with the mpirun of the MPI library that espalier info names. For one "
          "process that is meant to be alone: env -u {} espalier ...",
          launch.variable, launch.processes, ranks, ranks == 1 ? "" : "s", launch.variable));
}

}  // namespace espalier
