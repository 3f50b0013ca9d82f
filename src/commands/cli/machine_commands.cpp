#include "commands/cli/machine_commands.hpp"

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "commands/cli/options.hpp"
#include "commands/commands.hpp"

namespace espalier {
namespace {

/// Product plans and attention on rank 0 alone, before MPI starts; then the cluster file on all ranks.
CommandJob CalibrateJob(const std::shared_ptr<CalibrateOptions>& options) {
  MeasureOptions& measure = options->measure;
  if (options->OnOneGpu() && measure.file.find('=') != std::string::npos)
    measure.overrides.insert(measure.overrides.begin(), std::exchange(measure.file, ""));  // a key instead of FILE
  CheckCalibrateOptions(*options);
  if (options->attention) return OnFirstRank([options] { return CalibrateAttention(*options); });
  if (options->OnOneGpu()) return OnFirstRank([options] { return CalibrateGemms(*options); });
  return OnRanksOfJob([options] { return static_cast<int>(Measure(options->measure)); });
}

}  // namespace

void AddCalibrate(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand("calibrate", "measure this machine, for a cluster file; started as run is");
  command->add_option("FILE", options->measure.file, "cluster file to write, or to add to");
  command->add_option("--deck", options->measure.decks, "measure its kernels too; may be given more than once")
      ->type_name("DECK")
      ->allow_extra_args(false);
  command->add_flag_callback(
      "--neighbours", [options] { options->measure.shapes = Shapes::kNeighbours; },
      "measure each deck with half and twice batch.micro and model.seq_len too");
  command
      ->add_option("--steady", options->measure.steady_s,
                   "the first deck runs so long before it is timed, for device.sustained_share: 60 or more tell")
      ->type_name("SECONDS")
      ->check(Within(1.0, 86400.0));
  command
      ->add_option("--gemm-plans", options->gemm_plans,
                   "instead of FILE: the fastest algorithm of each matmul on this GPU, for run.gemm_plans")
      ->type_name("PLANS");
  command->add_flag("--attention", options->attention,
                    "instead of FILE: the fastest run.attention_backward on this GPU");
  AddRanks(command, options->ranks, "of --gemm-plans and --attention: ranks of each deck (the fewest that it allows)");
  command->add_option("key=value", options->measure.overrides, "keys of the decks, such as batch.micro=4");
  command->callback([options, &job] { job = CalibrateJob(options); });
}

void AddSelfTest(CLI::App& app, CommandJob& job) {
  auto options = std::make_shared<SelfTestOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "check this installation in about a minute, on all ranks that it is started on; started as run is");
  command
      ->add_option("--dir", options->folder, "folder for a temporary one, which all ranks share (the working folder)")
      ->type_name("FOLDER");
  command->add_flag("--keep", options->keep, "keep the temporary folder");
  command->callback(
      [options, &job] { job = OnRanksOfJob([options] { return static_cast<int>(SelfTest(*options)); }); });
}

}  // namespace espalier
