#include "commands/cli/supervise_commands.hpp"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/cli/options.hpp"
#include "commands/commands.hpp"
#include "espalier/deck/print.hpp"

namespace espalier {

void AddSupervise(CLI::App& app, CommandJob& job) {
  struct Flags {
    SuperviseOptions options;
    std::optional<std::string> dir;
  };
  auto flags = std::make_shared<Flags>();
  SuperviseOptions& options = flags->options;
  CLI::App* command = app.add_subcommand(
      "supervise", "train on hosts that may fail: starts the ranks, and again after a failure; started once");
  AddDeck(command, options.arguments);
  command->add_option("-d,--run-dir", flags->dir, "same as run.dir")->type_name("RUNDIR");
  command->add_option("--spares", options.spares, "hosts that wait until another one fails")
      ->type_name("N=0")
      ->check(Within(0, kMaxRanks));
  command->add_option("--hosts", options.hosts, "names with ranks, such as a:8,b:8 (those of the job; this host)")
      ->type_name("LIST");
  command->add_option("--hostfile", options.hostfile, "file with a line per host, such as a slots=8, or per rank")
      ->type_name("FILE")
      ->excludes(command->get_option("--hosts"));
  command->add_option("--ranks-per-host", options.ranks_per_host, "(as the hosts say)")
      ->type_name("N")
      ->check(Within(1, kMaxRanks));
  command
      ->add_option("--launch", options.launch,
                   "the launcher with its options (in a job of Slurm srun with PMIx; mpirun)")
      ->type_name("WORDS");
  command
      ->add_option("--cluster", options.cluster,
                   "cluster file (TOML): layouts for fewer hosts are the fastest there (the nearest to the deck's)")
      ->type_name("FILE");
  command->add_option("--program", options.program, "what the ranks run (this program)")->type_name("FILE");
  command->add_option("--tries", options.tries, "starts in a row without a further step, after which it gives up")
      ->type_name("N=3")
      ->check(Within(1, kMaxRanks));
  command->add_option("--host-failures", options.host_failures, "failures after which a host is not used again")
      ->type_name("N=3")
      ->check(Within(1, kMaxRanks));
  command->add_option("--probe", options.probe_s, "seconds that a host may take to answer")
      ->type_name("SECONDS=15")
      ->check(Within(1.0, 3600.0));
  command->callback([flags, &job] {
    std::vector<std::string>& overrides = flags->options.arguments.overrides;
    if (flags->dir) AddFlag("-d", "run.dir", TomlString(*flags->dir), overrides);
    job = [flags] { return SuperviseCommand(flags->options); };
  });
}

void AddOnHost(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<OnHostOptions>();
  CLI::App* command =
      app.add_subcommand("on-host", "clean this host between two starts of a supervised run")->group("");
  command->add_option("RUN_DIR", options->run_dir, "run.dir, absolute")->required();
  command->add_option("--memory", options->memory, "folder of states in memory to remove")->type_name("FOLDER");
  command->add_option("--since", options->since, "shared memory of MPI that is older stays")->type_name("SECONDS");
  command->callback([options, &job] { job = OnRanksOfJob([options] { return OnHostCommand(*options); }); });
}

}  // namespace espalier
