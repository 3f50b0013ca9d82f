#include "train/finish.hpp"

#include <fmt/format.h>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/memory.hpp"
#include "train/run_files.hpp"

namespace espalier {
namespace {

const FaultStages kFaultStages = {"end"};

ExitStatus StatusOf(const Outcome& outcome, bool saved) {
  if (outcome.error) return outcome.error->status();
  if (!saved) return ExitStatus::kFault;
  return outcome.stopped ? ExitStatus::kStopped : ExitStatus::kDone;
}

/// Ranks that share a GPU cannot tell their memory apart.
bool TellsOutside(const Run& run) {
  return run.device.Kind() == DeviceKind::kCuda && run.device.Computes() &&
         run.deck().run.transport == Transport::kNccl;
}

void ReportEnd(const Run& run, ExitStatus status) {
  const Arena& arena = run.programs.arena();
  std::vector<int64_t> peaks;
  const int64_t outside = run.device.OutsideBytes(arena.bytes(), run.checkpoints.staging_bytes());
  for (const std::string& peak : run.world.Gather(std::to_string(arena.HighWater()))) peaks.push_back(std::stoll(peak));
  const int64_t most_outside = run.world.Max(outside);
  run.reporter.End(status, peaks, most_outside);
  if (const int64_t planned = run.deck().run.outside_bytes; TellsOutside(run) && most_outside > planned)
    run.reporter.Say(fmt::format(
        "memory: a rank took {} of its GPU outside its arena, more than run.outside_bytes = {}: state it, so "
        "that plans and starts count on it",
        Gigabytes(most_outside), planned));
}

/// How well the machine could wait. Collective.
void ReportLateness(const Run& run, const Outcome& outcome) {
  if (run.device.Computes()) return;
  constexpr double kMillion = 1e6, kWorthSaying = 0.005;
  const double most =
      static_cast<double>(run.world.Max(static_cast<int64_t>(outcome.late_share * kMillion))) / kMillion;
  if (most < kWorthSaying) return;
  run.reporter.Say(
      fmt::format("late: on some rank, instructions began too late by {:.1f} % of the time of all steps, since this "
                  "machine was too busy: the times are too long by about as much; a larger run.dilation helps",
                  100 * most));
}

std::string FinalState(const Run& run, const Outcome& outcome, bool saved) {
  if (outcome.last_step == outcome.first_step)
    return fmt::format("the run ends at step {}, where it began", outcome.last_step);
  if (!run.device.Computes()) return fmt::format("the run ends after step {}", outcome.last_step);
  return fmt::format("the run ends after step {}, whose state is {}saved in {}", outcome.last_step, saved ? "" : "not ",
                     CheckpointFolder(run.deck()));
}

std::string HowToContinue(const Deck& deck, const Outcome& outcome) {
  if (deck.run.device == RunDevice::kSleep)
    return outcome.stopped ? fmt::format(
                                 "stopped after step {} of {}: a run that waits has no state, so that it begins "
                                 "at step 1 when it is started again",
                                 outcome.last_step, deck.run.steps)
                           : fmt::format("all {} steps are done; nothing was trained", deck.run.steps);
  if (outcome.stopped)
    return fmt::format("stopped after step {} of {}: start it again to go on", outcome.last_step, deck.run.steps);
  return fmt::format("all {} steps are done; for more: run.steps=N{}", deck.run.steps,
                     deck.data.format == DataFormat::kText ? "; for a text: espalier sample " + deck.run.dir : "");
}

}  // namespace

std::filesystem::path DoneFile(const Deck& deck) { return std::filesystem::path(deck.run.dir) / "done"; }

ExitStatus Finish(const Run& run, const Outcome& outcome) {
  run.watch.Set(Activity::kEnded);
  run.measured_costs.Write(run.world);
  const bool saved = run.checkpoints.Finish();
  const ExitStatus status = StatusOf(outcome, saved);
  ReportEnd(run, status);
  run.world.Barrier();  // from here on, a heartbeat that is gone says that its rank has ended in order
  run.watch.End();
  FaultPoint("end");
  if (outcome.error)
    throw AgreedError(status, fmt::format("{}; {}", outcome.error->what(), FinalState(run, outcome, saved)));
  if (!saved)
    throw AgreedError(status, fmt::format("{}: the last checkpoint could not be saved", CheckpointFolder(run.deck())));
  OnAllRanks(run.world, [&] {
    if (run.IsRankZero() && status == ExitStatus::kDone)
      WriteWhole(DoneFile(run.deck()), fmt::format("step {}\n", outcome.last_step));
  });
  ReportLateness(run, outcome);
  run.reporter.SaySummary();
  run.reporter.SayCommunication();
  run.reporter.Say(HowToContinue(run.deck(), outcome));
  return status;
}

}  // namespace espalier
