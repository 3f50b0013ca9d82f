#include "train/reporting/announce.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <cmath>

#include "espalier/costs/order.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/clock.hpp"
#include "train/reporting/fallbacks.hpp"
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
  if (run.device.Computes() && run.device.Kind() == DeviceKind::kCpu) start.cpu_level = CpuLevel();
  start.threads = run.threads.count;
  start.mesh = compilation.mesh;
  start.parameters = compilation.parameter_count;
  start.tokens_per_step = TokensPerStep(run.deck());
  start.first_step = step + 1;
  start.data = run.start.data.Record(run.deck());
  start.world_check_ms = proof.why_not.empty() ? proof.ms : std::nan("");
  start.startup_ms = MillisecondsSince(run.options.began);
  start.fault = run.faults;
  if (run.deck().times != nullptr) start.costs = run.deck().times->Origin();
  start.schedule = OriginOfSchedule(run.deck());
  if (!run.device.Computes()) start.cluster = run.deck().run.cluster;
  return start;
}

}  // namespace

void Announce(const Run& run, const StartTimes& times, const WorldProof& proof, int64_t step) {
  run.reporter.Start(RecordOf(run, proof, step));
  for (const DeckDifference& difference : run.checkpoints.differences())
    run.reporter.Changed(difference.key, difference.before, difference.now, difference.origin);
  for (const BlockLine& line : StartBlock(run, times, proof, step)) run.reporter.SayLine(line);
  if (run.IsRankZero() && !proof.why_not.empty())
    spdlog::warn("not proven that the programs of all ranks fit together: {}", proof.why_not);
  if (run.IsRankZero() && run.deck().model.experts.count > 0 &&
      run.deck().model.experts.routing == ExpertRouting::kBalanced)
    spdlog::warn(
        "experts.routing = \"balanced\": positions choose the experts of tokens, to measure speed; what is "
        "trained is of no use");
  AnnounceFallbacks(run.device, run.world);
}

}  // namespace espalier
