#include "train/finish.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/hint.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/write_whole.hpp"
#include "train/reporting/end_block.hpp"
#include "train/run_files.hpp"

namespace espalier {
namespace {

const FaultStages kFinishStages = {"end"};

ExitStatus StatusOf(const Outcome& outcome, bool saved) {
  if (outcome.error) return outcome.error->status();
  if (!saved) return ExitStatus::kFault;
  return outcome.stopped ? ExitStatus::kStopped : ExitStatus::kDone;
}

/// Ranks that share a GPU cannot measure their memory separately.
bool TellsOutside(const Run& run) {
  return run.device.Kind() == DeviceKind::kCuda && run.device.Computes() &&
         run.deck().run.transport == Transport::kNccl;
}

void ReportEnd(const Run& run, ExitStatus status) {
  const Arena& arena = run.programs.arena();
  const Arena* host = run.programs.host();
  const int64_t on_host = host == nullptr ? 0 : host->bytes();
  const int64_t outside = run.device.OutsideBytes(arena.bytes(), run.checkpoints.staging_bytes() + on_host);
  const std::vector<int64_t> peaks = Gathered(run.world, arena.HighWater());
  std::vector<int64_t> host_peaks = Gathered(run.world, host == nullptr ? 0 : host->HighWater());
  if (std::ranges::all_of(host_peaks, [](int64_t peak) { return peak == 0; })) host_peaks.clear();
  const int64_t most_outside = run.world.Max(outside);
  run.reporter.End(status, peaks, most_outside, host_peaks);
  if (const int64_t planned = run.deck().run.outside_bytes; TellsOutside(run) && most_outside > planned)
    run.reporter.Say(fmt::format(
        "memory: a rank took {} of its GPU outside its arena, more than run.outside_bytes = {}: state it, so "
        "that plans and starts count on it",
        Gigabytes(most_outside), planned));
}

/// Reports how exactly the machine could wait. Collective.
void ReportLateness(const Run& run, const Outcome& outcome) {
  if (run.device.Computes()) return;
  constexpr double kMillion = 1e6, kWorthSaying = 0.005;
  const double most =
      static_cast<double>(run.world.Max(static_cast<int64_t>(outcome.late_share * kMillion))) / kMillion;
  if (most < kWorthSaying) return;
  run.reporter.SayLine(
      {"late", fmt::format("on some rank, instructions began too late by {:.1f} % of the time of all steps, since this "
                           "machine was too busy: the times are too long by about as much; a larger run.dilation helps",
                           100 * most)});
}

std::string FinalState(const Run& run, const Outcome& outcome, bool saved) {
  if (outcome.last_step == outcome.first_step)
    return fmt::format("the run ends at step {}, where it began", outcome.last_step);
  if (!run.device.Computes()) return fmt::format("the run ends after step {}", outcome.last_step);
  return fmt::format("the run ends after step {}, whose state is {}saved in {}", outcome.last_step, saved ? "" : "not ",
                     CheckpointFolder(run.deck()));
}

void ReportEnd(const Run& run, const Outcome& outcome, ExitStatus status) {
  ReportLateness(run, outcome);
  run.reporter.SaySummary();
  if (!run.IsRankZero()) return;
  for (const BlockLine& line : EndBlock(run, outcome, status)) run.reporter.SayLine(line);
}

/// Throws if the run failed, the same on every rank.
void ThrowIfFailed(const Run& run, const Outcome& outcome, ExitStatus status, bool saved) {
  if (outcome.state_unusable) throw AgreedError(*outcome.error);  // its message has the remedy
  if (outcome.error)
    throw AgreedError(status, fmt::format("{}; {}", outcome.error->what(), FinalState(run, outcome, saved)));
  if (saved) return;
  const std::string good = OnRankZero(run.world, [&] { return LastGoodCheckpoint(run, outcome.last_step); });
  throw AgreedError(status, {fmt::format("{}: the last checkpoint could not be saved", CheckpointFolder(run.deck())),
                             Hint(fmt::format("{}; to try: more room there, or a smaller checkpoint.keep", good))});
}

}  // namespace

std::filesystem::path DoneFile(const Deck& deck) { return std::filesystem::path(deck.run.dir) / "done"; }

ExitStatus Finish(const Run& run, const Outcome& outcome) {
  run.watch.Set(Activity::kEnded);
  run.measured_costs.Write(run.world);
  const bool saved = run.checkpoints.Finish();
  const ExitStatus status = StatusOf(outcome, saved);
  ReportEnd(run, status);
  run.world.Barrier();  // from here on, a missing heartbeat means that its rank has ended in order
  run.watch.End();
  FaultPoint("end");
  if (status == ExitStatus::kDone) run.checkpoints.EndMemory();
  OnAllRanks(run.world, [&] {
    if (run.IsRankZero() && status == ExitStatus::kDone)
      WriteWhole(DoneFile(run.deck()), fmt::format("step {}\n", outcome.last_step));
  });
  ReportEnd(run, outcome, status);
  ThrowIfFailed(run, outcome, status, saved);
  return status;
}

}  // namespace espalier
