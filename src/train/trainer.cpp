// Training, in numbered steps: start, setup, state, announcement, steps, end. The deck goes down the journey
// of doc/architecture.md once, in SetUp; the steps are in step_loop.
#include "espalier/train/trainer.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/deck/epochs.hpp"
#include "espalier/report/run_log.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"
#include "train/finish.hpp"
#include "train/job.hpp"
#include "train/parts.hpp"
#include "train/reporting/announce.hpp"
#include "train/run.hpp"
#include "train/run_files.hpp"
#include "train/startup/check_launcher.hpp"
#include "train/startup/faults.hpp"
#include "train/startup/find_start.hpp"
#include "train/startup/same_start.hpp"
#include "train/step_loop.hpp"
#include "train/train_in.hpp"

namespace espalier {
namespace {

/// The checkpoint is already beyond the deck's last step.
ExitStatus NothingToDo(const Start& start, const World& world) {
  const std::string text = fmt::format(
      "{}: the checkpoint is at step {}, the deck asks for {}: nothing is done, and nothing was changed; for more "
      "training: {}\n",
      start.checkpoints.front(), *start.beyond, Counted(start.deck().run.steps, "step"),
      LongerRun(start.loaded, *start.beyond));
  if (world.Rank() == 0) std::fputs(text.c_str(), stdout);  // fputs does not throw, unlike fmt::print
  return ExitStatus::kDone;
}

/// Must be called before anything starts a thread. All ranks report a wrong deck together later.
void ChooseHowThreadsWait(const RunOptions& options) {
  if (!std::filesystem::is_regular_file(options.arguments.deck)) return;  // a pipe can be read only once
  try {
    WaitBriefly(LoadDeck(options.arguments.deck, options.arguments.overrides).deck);
  } catch (const UserError&) {
  }
}

}  // namespace

ExitStatus TrainIn(const RunOptions& options, World& world, MpiWorld* mpi, Parts& parts) {
  // 1. Start: the deck, the data, the run directory, and the checkpoints to try. All ranks have the same.
  RunLog& log = parts.Make<RunLog>(world.Rank(), options.verbosity);
  log.SetActivity("opening the data");
  const std::string faults = AnnounceFaults(world);
  Start& start = parts.Make<Start>(FindStart(options, world));
  StartTimes times{.found_ms = MillisecondsSince(options.began)};
  if (start.beyond) return NothingToDo(start, world);
  const bool sleeps = start.deck().run.device == RunDevice::kSleep;
  MakeSharedFolder(world, sleeps ? start.deck().run.dir : CheckpointFolder(start.deck()));

  // 2. Setup: devices, programs and their memory, watchdog, report.
  const Run& run = parts.Make<Run>(SetUp(options, faults, start, world, mpi, log, parts));
  times.set_up_ms = MillisecondsSince(options.began);

  // 3. State: weights and moments, from a checkpoint or initial ones.
  run.reporter.SetActivity(start.IsFresh() ? "making the initial weights" : "loading the checkpoint");
  const int64_t first_step = Restore(run, start);
  times.state_ms = MillisecondsSince(options.began);

  // 4. Announcement, once rank 0 has proved that the programs of all ranks fit together.
  Announce(run, times, run.world_check.Await(), first_step);
  OnAllRanks(world, [&] {
    if (run.IsRankZero() && first_step < run.deck().run.steps) RemoveFile(DoneFile(run.deck()));
  });

  // 5. Steps.
  const Outcome outcome = parts.Make<StepLoop>(run, first_step).Train();

  // 6. End: the last save, the summary, the exit status.
  return Finish(run, outcome);
}

ExitStatus Train(const RunOptions& options) {
  ChooseHowThreadsWait(options);
  ArmFaultFromEnvironment();
  InitializeStorage();
  return RunJob(
      [&](World& world, MpiWorld* mpi, Parts& parts) {
        CheckLauncher(world.Size());
        return TrainIn(options, world, mpi, parts);
      },
      CatchStopSignals);
}

}  // namespace espalier
