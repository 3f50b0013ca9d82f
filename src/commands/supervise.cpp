// espalier supervise: starts the ranks of a run, and starts them again after failures.
#include "espalier/supervise/supervise.hpp"

#include "commands.hpp"

namespace espalier {

int SuperviseCommand(const SuperviseOptions& options) { return static_cast<int>(Supervise(options)); }

int OnHostCommand(const OnHostOptions& options) {
  CleanHost(options);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
