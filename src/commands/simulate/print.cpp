#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "commands/plan/parts.hpp"
#include "commands/simulate/output.hpp"
#include "commands/simulate/routing.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

void PrintSetting(const Prediction& prediction, const SimulateOptions& options) {
  const Compilation& c = prediction.plan.training;
  const Cluster& cluster = prediction.target.cluster;
  fmt::print("cluster     {} ({}): {} node{} of {} x {}\n", cluster.name, cluster.path, prediction.nodes(),
             prediction.nodes() == 1 ? "" : "s", std::min(cluster.ranks_per_node, prediction.ranks()),
             cluster.compute.name);
  fmt::print("planned for {} ({})\n", DeckName(prediction.target.device), prediction.target.reason);
  fmt::print("ranks       {}: {}\n", prediction.ranks(), c.mesh.ToString());
  fmt::print("model       {}, {} parameters, {} compute\n", DeckName(c.deck.model.family),
             ExactCount(c.parameter_count), DeckName(c.deck.precision.compute));
  PrintOrder(c.deck);
  if (!prediction.target.interference)
    fmt::print("sleep       kernels and transfers do not slow each other down, as with run.device = \"sleep\"\n");
  if (const std::string routing = RoutingText(prediction.target.routing, c.deck); !routing.empty())
    fmt::print("routing     {}\n", routing);
  if (options.jitter > 0)
    fmt::print("jitter      {:.3g} % of a kernel's time, seed {}\n", 100 * options.jitter, options.seed);
  for (const Slow& slow : options.slow)
    fmt::print("slow        {} of {} take {:.4g} times as long\n",
               slow.what == Slow::What::kCompute ? "kernels" : "transfers",
               slow.first_rank == slow.last_rank ? fmt::format("rank {}", slow.first_rank)
                                                 : fmt::format("ranks {}-{}", slow.first_rank, slow.last_rank),
               slow.factor);
}

/// Where a rank's part of the vocabulary has no whole 16 bytes, what the head loses by it, and which vocabulary would
/// not.
void PrintVocabulary(const Prediction& prediction) {
  constexpr int64_t kAligned = 16;
  const Deck& deck = prediction.plan.training.deck;
  const double rate = prediction.target.cluster.compute.misaligned_share;
  const int64_t unit = deck.parallel.tp * (kAligned / SizeOf(deck.precision.compute)), vocab = deck.model.vocab;
  if (rate == 1 || vocab % unit == 0) return;
  fmt::print(
      "vocabulary  {} over tp {}: parts of no whole {} bytes, so the head's matmuls reach {:.0f} % of their rate; not "
      "with model.vocab = {}\n",
      vocab, deck.parallel.tp, kAligned, 100 * rate, (vocab + unit - 1) / unit * unit);
}

void PrintRates(const Prediction& prediction, const Figures& f) {
  const Compilation& c = prediction.plan.training;
  const std::string_view device = prediction.target.device == RunDevice::kCuda ? "GPU" : "rank";
  fmt::print("\nstep        {}: {} tokens, {} tokens/s, {} tokens/s per {}\n",
             DurationText(prediction.simulation.step_us), c.batch.tokens, HumanCount(f.tokens_per_s),
             HumanCount(f.tokens_per_s / prediction.ranks()), device);
  fmt::print("range       {} ({})\n", RangeText(f.step_range_s), f.range_reason);
  fmt::print("mfu         {:.1f} % causal, {:.1f} % with full attention; peak {:.4g} TFLOP/s per {}\n", 100 * f.mfu,
             100 * f.mfu_full, f.peak_tflops, device);
  PrintVocabulary(prediction);
  if (prediction.target.cluster.attention != AttentionKernels::kPlain)
    for (const std::string& reason : ReasonsForPlainAttention(prediction.plan))
      fmt::print(
          "attention   not by cuDNN ({}): our own kernels compute it, many times slower than this step assumes\n",
          reason);
  if (const BatchRamp ramp(c.deck.batch); ramp.Grows())
    fmt::print("batch       {}: the run below counts each step with its own time, all else is of {} sequences\n",
               Describe(ramp), c.batch.sequences);
  fmt::print("run         {}: {}, {} node-hours ({})\n", Counted(c.deck.run.steps, "step"), HumanDuration(f.run_s),
             HumanCount(f.node_hours),
             f.saves.blocked_s ? "with waits for checkpoints" : "without checkpoints, whose time is not known");
}

void PrintMemory(const Prediction& prediction, const Figures& f) {
  const Cluster& cluster = prediction.target.cluster;
  fmt::print("memory      {} ({}) on rank {}, which needs most\n", HumanBytes(f.peak_bytes), DecimalBytes(f.peak_bytes),
             f.peak_rank);
  fmt::print("fits        {}: {}, {} {}", DecimalBytes(cluster.compute.memory_bytes), f.fits() ? "yes" : "no",
             DecimalBytes(std::abs(f.free_bytes)), f.fits() ? "free" : "short");
  if (cluster.compute.reserved_bytes > 0)
    fmt::print(" ({} are reserved for context and libraries)", DecimalBytes(cluster.compute.reserved_bytes));
  if (cluster.device == DeviceKind::kCpu && f.staging_bytes > 0)
    fmt::print(" ({} more to stage checkpoints)", DecimalBytes(f.staging_bytes));
  if (cluster.device == DeviceKind::kCpu && f.copies.host_bytes > 0)
    fmt::print(" ({} more for copies in memory)", DecimalBytes(f.copies.host_bytes));
  fmt::print("\n");
}

/// The kinds of communication that have a column: copies to and from the host only if there are any.
std::vector<CommAxis> Columns(const Simulation& simulation) {
  std::vector<CommAxis> columns(kCommAxes.begin(), kCommAxes.end());
  const auto copies = [](const RankTimes& times) {
    return times.breakdown.exposed_us[CommAxis::kHost] + times.breakdown.hidden_us[CommAxis::kHost] > 0;
  };
  if (std::ranges::any_of(simulation.classes, copies)) columns.push_back(CommAxis::kHost);
  return columns;
}

void PrintShareHead(const std::vector<CommAxis>& columns) {
  fmt::print("\nparts of the step, slowest rank of each stage, %\nstage   rank  ranks  compute");
  for (const CommAxis axis : columns) fmt::print(" {:>10}", fmt::format("exposed {}", Name(axis)));
  fmt::print("     idle  finished after\n");
}

void PrintShares(const RankTimes& times, const std::vector<CommAxis>& columns, double step_us) {
  fmt::print("{:>5} {:>6} {:>6} {:>8.1f}", times.stage, times.rank, times.ranks,
             Percent(times.breakdown.compute_us, step_us));
  for (const CommAxis axis : columns) fmt::print(" {:>10.1f}", Percent(times.breakdown.exposed_us[axis], step_us));
  fmt::print(" {:>8.1f}  {:>14}\n", Percent(times.breakdown.idle_us, step_us), DurationText(times.end_us));
}

void PrintStages(const Simulation& simulation) {
  std::map<int, const RankTimes*> slowest;
  for (const RankTimes& times : simulation.classes) {
    const RankTimes*& of_stage = slowest[times.stage];
    if (of_stage == nullptr || times.end_us > of_stage->end_us) of_stage = &times;
  }
  const std::vector<CommAxis> columns = Columns(simulation);
  PrintShareHead(columns);
  for (const auto& [stage, times] : slowest) PrintShares(*times, columns, simulation.step_us);
}

/// The slowest rank: its parts in milliseconds, and the hidden share of its communication.
void PrintSlowest(const Simulation& simulation) {
  const RankTimes& times = simulation.Slowest();
  const Breakdown& b = times.breakdown;
  fmt::print("\nslowest rank: {} of stage {}; compute {}, idle {}\n", times.rank, times.stage,
             DurationText(b.compute_us), DurationText(b.idle_us));
  fmt::print("messages     exposed      hidden  hidden share\n");
  for (const CommAxis axis : kAllCommAxes) {
    const double all_us = b.exposed_us[axis] + b.hidden_us[axis];
    if (all_us > 0)
      fmt::print("{:>8} {:>11} {:>11} {:>11.1f} %\n", Name(axis), DurationText(b.exposed_us[axis]),
                 DurationText(b.hidden_us[axis]), Percent(b.hidden_us[axis], all_us));
  }
}

/// The slowest rank by what its kernels and messages are for.
void PrintParts(const Simulation& simulation) {
  const RankTimes& times = simulation.Slowest();
  fmt::print("\npart         kernels     exposed      hidden\n");
  for (int p = 0; p < kStepPartCount; ++p) {
    const auto part = static_cast<StepPart>(p);
    const PartTimes& t = times.parts[part];
    if (t == PartTimes{}) continue;
    fmt::print("{:<9} {:>10} {:>11} {:>11}\n", Name(part), DurationText(t.kernels_us), DurationText(t.exposed_us),
               DurationText(t.hidden_us));
  }
}

std::string IntervalText(const Saves& saves) {
  if (saves.every_steps == 0) return "at the end only";
  return fmt::format("every {:.0f} steps, {} in all", saves.every_steps, saves.count);
}

void PrintSaves(const Prediction& prediction, const Figures& f) {
  const Saves& s = f.saves;
  fmt::print("\ncheckpoints {} each, {} by the node that writes most; {}\n", DecimalBytes(s.bytes),
             DecimalBytes(s.node_bytes), IntervalText(s));
  fmt::print("  copy      {}\n",
             s.copy_s ? fmt::format("{} into the host's memory: {} of one rank", DurationText(*s.copy_s * 1e6),
                                    DecimalBytes(s.rank_bytes))
                      : fmt::format("not known: {} has no device.host_bytes_per_us", prediction.target.cluster.path));
  fmt::print("  write     {}\n",
             s.write_s ? fmt::format("{}{}", DurationText(*s.write_s * 1e6),
                                     s.asynchronous ? ", while training goes on" : ", while training waits")
                       : fmt::format("not known: {} has no storage.node_bytes_per_us", prediction.target.cluster.path));
  if (s.blocked_s)
    fmt::print("  blocked   {} each, {:.2g} % of the run\n", DurationText(*s.blocked_s * 1e6),
               Percent(*s.blocked_s * static_cast<double>(s.count), f.run_s));
}

void PrintCopies(const Prediction& prediction, const Figures& f) {
  const MemoryCopies& c = f.copies;
  if (c.every_steps == 0) return;
  fmt::print("\ncopies in memory every {}, {} in all; {} of the host's memory per rank at most\n",
             Counted(c.every_steps, "step"), c.count, DecimalBytes(c.host_bytes));
  if (!c.copy_s || !c.blocked_s)
    return fmt::print("  copy      not known: {} lacks device.host_bytes_per_us or rates of its network\n",
                      prediction.target.cluster.path);
  fmt::print("  copy      {} each{}\n", DurationText(*c.copy_s * 1e6),
             prediction.nodes() > 1 ? ", to another node too" : "; there is one node, so no second copy");
  fmt::print("  blocked   {} each, {:.2g} % of the run\n", DurationText(*c.blocked_s * 1e6),
             Percent(*c.blocked_s * static_cast<double>(c.count), f.run_s));
}

void PrintConfidence(const Prediction& prediction, const Figures& f) {
  std::vector<std::string> shares;
  for (int k = 0; k < kCostSourceCount; ++k)
    shares.push_back(
        fmt::format("{:.1f} % {}", 100 * f.source_share[static_cast<size_t>(k)], Name(static_cast<CostSource>(k))));
  const Simulation& simulation = prediction.simulation;
  fmt::print("\ntimes       {}\n", fmt::join(shares, ", "));
  fmt::print("simulated   {} class{} of ranks for {} ranks, {} instructions, in {} after {} of compiling\n",
             simulation.classes.size(), simulation.classes.size() == 1 ? "" : "es", prediction.ranks(),
             simulation.events, DurationText(prediction.simulate_ms * 1e3), DurationText(prediction.plan_ms * 1e3));
}

}  // namespace

std::string DurationText(double us) {
  const auto digits = [](double x) { return x < 9.995 ? 2 : x < 99.95 ? 1 : 0; };
  if (us < 999.5) return fmt::format("{:.{}f} us", us, us == 0 ? 0 : digits(us));
  if (us < 999.5e3) return fmt::format("{:.{}f} ms", us / 1e3, digits(us / 1e3));
  if (us < 60e6) return fmt::format("{:.{}f} s", us / 1e6, digits(us / 1e6));
  return HumanDuration(us / 1e6);
}

std::string RangeText(const TimeRange& s) {
  return fmt::format("{} to {}", DurationText(s.least / kMicro), DurationText(s.most / kMicro));
}

void PrintPrediction(const Prediction& prediction, const Figures& figures, const SimulateOptions& options) {
  PrintSetting(prediction, options);
  PrintRates(prediction, figures);
  PrintMemory(prediction, figures);
  PrintStages(prediction.simulation);
  PrintSlowest(prediction.simulation);
  PrintParts(prediction.simulation);
  PrintSaves(prediction, figures);
  PrintCopies(prediction, figures);
  PrintConfidence(prediction, figures);
}

}  // namespace espalier
