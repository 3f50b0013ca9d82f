#include "train/reporting/tracer.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

constexpr int kBarriers = 9;  ///< an odd number, for the median

}  // namespace

Tracer::Tracer(const Deck& deck, const Programs& programs, World& world, Reporter& reporter)
    : programs_(programs),
      world_(world),
      reporter_(reporter),
      deck_name_(deck.name),
      folder_((std::filesystem::path(deck.run.dir) / "trace").string()),
      steps_(ParseStepRange(deck.report.trace).value_or(StepRange{})),
      last_step_(deck.run.steps),
      dilation_(deck.run.device == RunDevice::kSleep ? deck.run.dilation : 1),
      traced_(TracedRanks(programs.compilation().mesh, kMaxTraced)) {
  if (steps_.last < steps_.first) return;
  OnRankZero(world, [&] { return std::filesystem::create_directories(folder_); });
}

std::string Tracer::Notice() const {
  if (steps_.last < steps_.first) return "";
  return fmt::format(
      "steps {} to {} {}, in {}", steps_.first, steps_.last,
      std::ssize(traced_) == world_.Size()
          ? fmt::format("of all {} ranks", world_.Size())
          : fmt::format("of rank 0's pipeline, one rank per stage: {} of {} ranks (at most {} are drawn)",
                        traced_.size(), world_.Size(), kMaxTraced),
      folder_);
}

void Tracer::BeginWith(int64_t step) {
  constexpr int64_t kWarmUp = 2;
  const Device& device = programs_.device();
  if (device.Computes() && device.Kind() == DeviceKind::kCuda && world_.Size() > 1)
    sampled_ = std::min(step + kWarmUp, last_step_);
}

void Tracer::Before(int64_t step) {
  programs_.TrainingOf(step).executor().TimeNextStep();
  if (steps_.Has(step) && !std::exchange(profiling_, true)) programs_.device().Profile(Profiling::kStart);
  barriers_us_.clear();
  for (int i = 0; i < kBarriers; ++i) {
    world_.Barrier();
    barriers_us_.push_back(SteadyMicroseconds() / dilation_);
  }
}

MeasuredRank Tracer::Measured(const Executor& executor) const {
  MeasuredRank measured{NodeKey(), barriers_us_, executor.TimedStepBegan() / dilation_, {}, {}};
  if (std::ranges::find(traced_, world_.Rank()) == traced_.end()) return measured;
  for (const Span& span : executor.spans()) {
    measured.ready_us.push_back(span.ready_us);
    measured.end_us.push_back(span.end_us);
  }
  return measured;
}

std::optional<Breakdown> Tracer::After(int64_t step) {
  if (!steps_.Has(step + 1) && std::exchange(profiling_, false)) programs_.device().Profile(Profiling::kStop);
  const std::vector<MeasuredRank> ranks = Gathered(world_, Measured(programs_.TrainingOf(step).executor()));
  if (world_.Rank() != 0) return std::nullopt;
  const Timeline timeline = TimelineOf(step, ranks);
  if (steps_.Has(step)) Write(step, timeline);
  return BreakDown(timeline.tracks.front(), timeline.step_us);
}

Timeline Tracer::TimelineOf(int64_t step, const std::vector<MeasuredRank>& ranks) {
  return MeasuredTimeline(
      fmt::format("{}, step {}, measured on {} rank{}", deck_name_, step, world_.Size(), world_.Size() == 1 ? "" : "s"),
      ranks, traced_, [&](int rank) { return ProgramOf(step, rank); });
}

/// Traces that cannot be written only cause a warning: the run continues.
void Tracer::Write(int64_t step, const Timeline& timeline) {
  const std::string file = fmt::format("{}/step-{:08}", folder_, step);
  try {
    WriteWhole(file + ".json", TraceJson(timeline));
    WriteWhole(file + ".svg", DrawSvg({timeline}));
  } catch (const UserError& error) {
    return spdlog::warn("trace: {}", error.what());
  }
  reporter_.Trace({step, static_cast<int>(traced_.size()), timeline.step_us, MeanBreakdown(timeline), file + ".svg"});
}

std::shared_ptr<const Program> Tracer::ProgramOf(int64_t step, int rank) {
  if (representatives_.empty()) representatives_ = ClassRepresentatives(programs_.compilation());
  const int representative = representatives_[static_cast<size_t>(rank)];
  const Compilation& compilation = programs_.TrainingOf(step).compilation;
  std::shared_ptr<const Program>& program = compiled_[{&compilation, representative}];
  if (program == nullptr)
    program = std::make_shared<const Program>(MakeProgram(compilation, compilation.mesh.CoordinateOf(representative)));
  return program;
}

}  // namespace espalier
