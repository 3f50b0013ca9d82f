// The program in numbered steps. The steps of a training run are in src/train/trainer.cpp.
#include <exception>
#include <string>
#include <vector>

#include "commands/cli/command_line.hpp"
#include "commands/cli/console.hpp"
#include "commands/cli/report_error.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

int Main(const std::vector<std::string>& arguments) {
  // 1. Process: standard streams, signals that stop a run, and this process's rank, before MPI can change any of them.
  OpenStandardStreams();
  CatchStopSignals();
  LauncherRank();
  SetUpLog();
  try {
    // 2. Environment: the ESPALIER_* variables are known and have allowed values, and the processor has ESPALIER_ISA.
    CheckEnvironment();
    CpuLevel();
    // 3. Command line: which command, with which options.
    const CommandJob job = CommandLine().Read(arguments);
    // 4. The command. For `run`: read the deck, compile, train, report.
    return job();
    // 5. Errors: of the user, of the program itself, of the environment.
  } catch (const UserError& error) {
    return ReportUserError(error);
  } catch (const InvariantError& error) {
    return ReportFault("internal error", error);
  } catch (const std::exception& error) {
    return ReportFault("error", error);
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Main({argv + 1, argv + argc}); }
