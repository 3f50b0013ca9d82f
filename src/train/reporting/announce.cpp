#include "train/reporting/announce.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>

#include "espalier/model/flops.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/clock.hpp"
#include "train/reporting/fallbacks.hpp"
#include "train/reporting/peak.hpp"
#include "train/reporting/start_block.hpp"

namespace espalier {
namespace {

StartRecord RecordOf(const Run& run, const WorldProof& proof, int64_t step) {
  const Compilation& compilation = run.programs.compilation();
  StartRecord start;
  start.version = fmt::format("{} ({})", kVersion, kGitHash);
  start.deck = run.deck().name;
  start.ranks = run.world.Size();
  start.device = DeckName(run.deck().run.device);
  start.threads = run.threads.count;
  start.mesh = compilation.mesh;
  start.parameters = compilation.parameter_count;
  start.tokens_per_step = TokensPerStep(run.deck());
  start.first_step = step + 1;
  start.data = run.start.data.Record(run.deck());
  start.world_check_ms = proof.why_not.empty() ? proof.ms : std::nan("");
  start.startup_ms = MillisecondsSince(run.options.began);
  start.fault = run.faults;
  if (!run.device.Computes()) start.cluster = run.deck().run.cluster;
  return start;
}

void AnnounceWorld(const Run& run, const WorldProof& proof) {
  if (proof.why_not.empty())
    spdlog::info("world: the programs of {} ranks fit together (proven in {:.0f} ms beside the start)",
                 run.world.Size(), proof.ms);
  else
    spdlog::warn("world: not proven that the programs of all ranks fit together: {}", proof.why_not);
}

void AnnounceRamp(const Run& run, int64_t step) {
  const BatchRamp& ramp = run.programs.ramp();
  if (!ramp.Grows()) return;
  spdlog::info("batch: {}{}; {} sizes with a training program each, compiled in {:.1f} s", Describe(ramp),
               step == 0 ? "" : fmt::format("; step {} has {}", step + 1, ramp.SequencesOf(step + 1)),
               run.programs.trainings().size(), run.programs.training_compile_ms() / 1e3);
}

void AnnounceSleep(const Deck& deck) {
  spdlog::info(
      "sleep: nothing is computed or trained: kernels and messages wait for their times on the cluster of {}, {:g} "
      "times "
      "as long (run.dilation); the times reported are those of the cluster; loss and gradient norm are null",
      deck.run.cluster, deck.run.dilation);
  spdlog::info(
      "sleep: no data are read and no checkpoint is read or written; the guard on values that are not finite is off{}",
      Evaluates(deck) ? ", and validation is left out" : "");
}

}  // namespace

void Announce(const Run& run, const WorldProof& proof, int64_t step) {
  const bool root = run.IsRankZero();
  run.reporter.Start(RecordOf(run, proof, step));
  if (root && !run.device.Computes()) AnnounceSleep(run.deck());
  for (const std::string& line : StartBlock(run, step)) run.reporter.Say(line);
  if (root) AnnounceRamp(run, step);
  if (root && run.world.Size() > 1) AnnounceWorld(run, proof);
  for (const DeckDifference& difference : run.checkpoints.differences()) {
    run.reporter.Changed(difference.key, difference.before, difference.now, difference.origin);
    if (root) spdlog::info("{}", difference.Text());
  }
  if (root)
    for (const std::string& line : DescribeGroups(run.deck())) spdlog::info("{}", line);
  AnnounceDevices(run.device, run.world);
  AnnounceFallbacks(run.device, run.world);
  if (root) AnnouncePeak(run.peak);
  if (root && !run.threads.notice.empty()) spdlog::info("threads: {}", run.threads.notice);
  if (const std::string notice = run.stop_reasons.Notice(); root && !notice.empty()) spdlog::info("{}", notice);
}

}  // namespace espalier
