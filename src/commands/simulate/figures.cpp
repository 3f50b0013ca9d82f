#include "commands/simulate/figures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "commands/plan/parts.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/tune/tune.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

constexpr double kHour = 3600;

ByCostSource<double> SourceShares(const Simulation& simulation) {
  ByCostSource<double> share{};
  double all = 0;
  for (const RankTimes& times : simulation.classes)
    for (size_t k = 0; k < share.size(); ++k) {
      share[k] += times.by_source_us[k] * times.ranks;
      all += times.by_source_us[k] * times.ranks;
    }
  for (double& one : share) one = all > 0 ? one / all : 0;
  return share;
}

void AddMemory(const Prediction& prediction, Figures& figures) {
  const std::vector<int64_t>& peaks = prediction.plan.rank_peak_bytes;
  const Cluster& cluster = prediction.target.cluster;
  const auto most = std::ranges::max_element(peaks);
  figures.peak_bytes = *most;
  figures.peak_rank = static_cast<int>(most - peaks.begin());
  figures.staging_bytes = figures.saves.staged ? figures.saves.rank_bytes : 0;
  figures.free_bytes = cluster.compute.memory_bytes - cluster.compute.reserved_bytes - figures.peak_bytes;
  if (cluster.device == DeviceKind::kCpu) figures.free_bytes -= figures.staging_bytes + figures.copies.host_bytes;
}

/// The message with rank, bytes, purpose and the device's memory.
std::string WhyItDoesNotFit(const Prediction& prediction, const Figures& figures) {
  const Program& program =
      prediction.plan.programs.at(prediction.plan.representative[static_cast<size_t>(figures.peak_rank)]);
  const Cluster& cluster = prediction.target.cluster;
  const bool staged = cluster.device == DeviceKind::kCpu && figures.staging_bytes > 0;
  const bool copied = cluster.device == DeviceKind::kCpu && figures.copies.host_bytes > 0;
  return fmt::format("it does not fit: rank {} needs {} ({}){}{}, and {} has {}{}: {} short", figures.peak_rank,
                     DecimalBytes(figures.peak_bytes), ClassesText(program.peak_by_class),
                     staged ? fmt::format(" and {} to stage checkpoints", DecimalBytes(figures.staging_bytes)) : "",
                     copied ? fmt::format(" and {} for copies in memory", DecimalBytes(figures.copies.host_bytes)) : "",
                     cluster.compute.name, DecimalBytes(cluster.compute.memory_bytes),
                     cluster.compute.reserved_bytes > 0
                         ? fmt::format(", {} of it reserved", DecimalBytes(cluster.compute.reserved_bytes))
                         : "",
                     DecimalBytes(-figures.free_bytes));
}

/// All steps of the run, each as long as its size takes.
double StepsSeconds(const Prediction& prediction) {
  const Deck& deck = prediction.deck();
  const std::vector<RampSize> sizes = BatchRamp(deck.batch).SizesWithin(deck.run.steps);
  double us = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t end = i + 1 < sizes.size() ? sizes[i + 1].first_step : deck.run.steps + 1;
    us += static_cast<double>(end - sizes[i].first_step) * prediction.ramp_us[i];
  }
  return us * kMicro;
}

}  // namespace

int64_t PeakOf(const Prediction& prediction, int rank) {
  return prediction.plan.rank_peak_bytes[static_cast<size_t>(rank)];
}

Figures FiguresOf(const Prediction& prediction) {
  const Compilation& c = prediction.plan.training;
  const Simulation& simulation = prediction.simulation;
  const Cluster::Device& device = prediction.target.cluster.compute;
  const ModelFlops flops = FlopsPerToken(c.deck);
  Figures f;
  f.step_s = simulation.step_us * kMicro;
  f.tokens_per_s = static_cast<double>(c.batch.tokens) / f.step_s;
  f.peak_tflops = c.deck.precision.compute == Dtype::kBf16 ? device.bf16_tflops : device.fp32_tflops;
  const double of_peak = f.tokens_per_s / (f.peak_tflops * kTera * prediction.ranks());
  f.mfu = flops.causal * of_peak;
  f.mfu_full = flops.full * of_peak;
  f.saves = SavesOf(prediction);
  f.copies = MemoryCopiesOf(prediction, f.saves);
  f.run_s = StepsSeconds(prediction) + static_cast<double>(f.saves.count) * f.saves.blocked_s.value_or(0) +
            static_cast<double>(f.copies.count) * f.copies.blocked_s.value_or(0);
  f.node_hours = f.run_s / kHour * prediction.nodes();
  for (const double us : simulation.Slowest().breakdown.exposed_us) f.exposed_us += us;
  f.source_share = SourceShares(simulation);
  AddMemory(prediction, f);
  return f;
}

void RefuseIfItDoesNotFit(const Prediction& prediction, const Figures& figures) {
  if (figures.fits()) return;
  std::fflush(stdout);
  std::string why = WhyItDoesNotFit(prediction, figures);
  const std::vector<std::string> settings =
      NearestThatFit(prediction.deck(), prediction.ranks(), figures.peak_bytes + figures.free_bytes);
  if (!settings.empty()) why += fmt::format("; nearest settings that fit: {}", fmt::join(settings, "; or "));
  throw UserError(ExitStatus::kDoesNotFit, std::move(why));
}

}  // namespace espalier
