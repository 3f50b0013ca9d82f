#include "tune/trial.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "espalier/program/plan.hpp"
#include "espalier/tune/memory_choice.hpp"

namespace espalier {
namespace {

using Programs = std::map<int, std::shared_ptr<const Program>>;  // by representative

Compilation CompileFor(const Deck& deck, int ranks, Purpose purpose) {
  return Compile(deck, ranks, purpose, {}, Verification::kAtTheEnd);
}

/// The training programs of all ranks, or of the first ranks up to one that exceeds `memory_bytes`.
Programs MakePrograms(const Compilation& c, const std::vector<int>& representative, int64_t memory_bytes) {
  Programs programs;
  const ProgramMaker maker(c);
  for (int rank : representative) {
    auto& program = programs[rank];
    if (program != nullptr) continue;
    program = std::make_shared<const Program>(maker.Make(c.mesh.CoordinateOf(rank)));
    if (program->arena_bytes > memory_bytes) break;
  }
  return programs;
}

int64_t PeakOfTraining(const Programs& programs) {
  int64_t peak = 0;
  for (const auto& [rank, program] : programs) peak = std::max(peak, program->arena_bytes);
  return peak;
}

int64_t PeakOfAll(const Compilation& training, const Programs& programs) {
  int64_t peak = PeakOfTraining(programs);
  const std::vector<ProgramOfRun> all = ProgramsOfRun(training.deck);
  for (auto other = all.begin() + 1; other != all.end(); ++other) {
    const Compilation compilation = CompileFor(other->deck, training.mesh.Ranks(), other->purpose);
    const ProgramMaker maker(compilation);
    for (const auto& [rank, program] : programs)
      peak = std::max(peak, maker.ArenaBytes(training.mesh.CoordinateOf(rank), StateBytes(*program))[Space::kDevice]);
  }
  return peak;
}

bool FitsHost(int64_t bytes, int ranks, const Cluster& cluster) {
  const int64_t memory = cluster.host.memory_bytes;
  return memory == 0 || bytes * std::min(ranks, cluster.ranks_per_node) <= memory;
}

size_t CountPrograms(std::vector<int> representative) {
  std::ranges::sort(representative);
  return static_cast<size_t>(std::ranges::unique(representative).begin() - representative.begin());
}

int64_t HostBytes(const Programs& programs) {
  int64_t most = 0;
  for (const auto& [rank, program] : programs) most = std::max(most, program->host_bytes);
  return most;
}

void SimulateTrial(const Compilation& c, const std::vector<int>& representative, const Programs& programs,
                   const Costs& costs, Trial& trial) {
  const Simulation simulation = Simulate(
      {c.mesh, representative, [&](int rank) { return programs.at(representative[static_cast<size_t>(rank)]); }},
      costs);
  const RankTimes& slowest = simulation.Slowest();
  trial.step_us = simulation.step_us;
  trial.breakdown = slowest.breakdown;
  trial.parts = slowest.parts;
  double all = 0;
  for (double us : slowest.by_source_us) all += us;
  if (all > 0) trial.measured_share = 1 - slowest.by_source_us[CostSource::kFormula] / all;
}

}  // namespace

int64_t PeakBytes(const Deck& deck, int ranks) {
  const Compilation c = CompileFor(deck, ranks, Purpose::kTrain);
  return PeakOfAll(c, MakePrograms(c, ClassRepresentatives(c), std::numeric_limits<int64_t>::max()));
}

Trial Try(const Deck& asked, int ranks, const Costs& costs, int64_t memory_bytes, int programs_per_stage) {
  Trial trial;
  Deck deck = asked;
  if (LeavesMemoryOpen(asked))
    deck = ChooseMemory(asked, ranks, costs.cluster().device, MemoryBudget(asked, memory_bytes), costs, 1).deck;
  const Compilation c = CompileFor(deck, ranks, Purpose::kTrain);
  const std::vector<int> representative = ClassRepresentatives(c);
  const size_t different = CountPrograms(representative);
  if (different > static_cast<size_t>(programs_per_stage) * static_cast<size_t>(deck.parallel.pp)) {
    trial.why_not = fmt::format("{} different programs", different);
    return trial;
  }
  const Programs programs = MakePrograms(c, representative, memory_bytes);
  trial.peak_bytes = PeakOfTraining(programs);
  if (trial.peak_bytes <= memory_bytes) trial.peak_bytes = PeakOfAll(c, programs);
  trial.host_bytes = HostBytes(programs);
  trial.fits = trial.peak_bytes <= memory_bytes && FitsHost(trial.host_bytes, ranks, costs.cluster());
  if (trial.peak_bytes <= memory_bytes) SimulateTrial(c, representative, programs, costs.Of(JobOf(deck, ranks)), trial);
  return trial;
}

Trial TryTraining(const Deck& deck, int ranks, const Costs& costs) {
  const Compilation c = CompileFor(deck, ranks, Purpose::kTrain);
  const std::vector<int> representative = ClassRepresentatives(c);
  const Programs programs = MakePrograms(c, representative, std::numeric_limits<int64_t>::max());
  Trial trial;
  trial.peak_bytes = PeakOfTraining(programs);
  trial.host_bytes = HostBytes(programs);
  trial.fits = FitsHost(trial.host_bytes, ranks, costs.cluster());
  SimulateTrial(c, representative, programs, costs.Of(JobOf(deck, ranks)), trial);
  return trial;
}

std::string LimitOf(const Breakdown& breakdown, double step_us) {
  std::string most = "idle";
  double us = breakdown.idle_us;
  for (CommAxis axis : kAllCommAxes)
    if (breakdown.exposed_us[axis] > us) us = breakdown.exposed_us[axis], most = fmt::format("exposed {}", Name(axis));
  return fmt::format("{} {:.0f} %", most, 100 * us / step_us);
}

}  // namespace espalier
