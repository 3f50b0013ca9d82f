#include "espalier/program/plan.hpp"

#include <algorithm>
#include <memory>
#include <set>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/expert_parallel.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/parallel.hpp"

namespace espalier {
namespace {

/// By stage: layers 1..L of the graph, and those for further tokens, as transformer layers from 0.
std::vector<std::vector<int>> LayersOfStages(const Compilation& c) {
  std::vector<std::vector<int>> stages(c.schedule.stages);
  for (const Op& op : c.graph->ops)
    if (op.role == Role::kF && !IsReshard(op.kind) && op.layer >= 1 && op.layer <= c.deck.model.AllLayers())
      stages[c.StageOf(op.chunk)].push_back(op.layer - 1);
  for (std::vector<int>& layers : stages) {
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  }
  return stages;
}

/// Sizes that do not divide evenly make ranks differ, and every different program is compiled and kept. Returns an
/// error message if there are too many for one process.
std::string TooManyPrograms(const Compilation& c, const std::vector<int>& representative) {
  constexpr double kMaxPasses = (1 << 18) + (1 << 16);  // some 10 million instructions
  const std::set<int> different(representative.begin(), representative.end());
  const double of_one =
      double(c.deck.model.AllLayers()) * (0.25 + double(c.batch.microbatches) / double(c.schedule.stages));
  if (double(different.size()) * of_one <= kMaxPasses) return "";
  return fmt::format(
      "{} ranks have {} different programs, each of about {:.0f} passes of a microbatch through a layer; "
      "one process compiles at most {:.0f} (choose sizes that the degrees divide, fewer microbatches, or "
      "fewer ranks)",
      c.mesh.Ranks(), different.size(), of_one, kMaxPasses);
}

/// The compilations of a deck, training first.
std::vector<Compilation> CompileAll(const Deck& deck, int ranks) {
  const std::vector<ProgramOfRun> programs = ProgramsOfRun(deck);
  std::vector<Compilation> compilations(programs.size());
  ParallelFor(programs.size(),
              [&](size_t i) { compilations[i] = Compile(programs[i].deck, ranks, programs[i].purpose); });
  return compilations;
}

/// The figures of a program in a plan.
struct ProgramFacts {
  int64_t peak_bytes = 0, host_bytes = 0;  ///< of all programs of a run
  std::vector<std::pair<std::string, MessageCount>> messages;
};

/// The facts of every program of a plan, in order.
std::vector<ProgramFacts> FactsOfPrograms(const WorldPlan& plan, const std::vector<Compilation>& others) {
  std::vector<std::pair<int, const Program*>> programs;
  for (const auto& [rank, program] : plan.programs) programs.emplace_back(rank, &program);
  std::vector<std::unique_ptr<ProgramMaker>> makers;
  for (const Compilation& other : others) makers.push_back(std::make_unique<ProgramMaker>(other));
  std::vector<ProgramFacts> facts(programs.size());
  ParallelFor(programs.size(), [&](size_t i) {
    const auto& [rank, program] = programs[i];
    const Coordinate coordinate = plan.training.mesh.CoordinateOf(rank);
    facts[i] = {program->arena_bytes, program->host_bytes, CountMessages(*program, coordinate)};
    for (const auto& maker : makers) {
      const BySpace<int64_t> other = maker->ArenaBytes(coordinate, StateBytes(*program));
      facts[i].peak_bytes = std::max(facts[i].peak_bytes, other[Space::kDevice]);
      facts[i].host_bytes = std::max(facts[i].host_bytes, other[Space::kHost]);
    }
  });
  return facts;
}

}  // namespace

bool Evaluates(const Deck& deck) { return deck.data.validate_every_steps > 0 && !deck.data.validation.empty(); }

bool CopiesWeights(const Deck& deck) { return deck.precision.compute != Dtype::kF32; }

bool ComparesComputation(const Deck& deck) { return deck.guard.recompute_steps > 0 && HasReplicas(deck.parallel); }

BySpace<int64_t> CopiedBytes(const Program& program) {
  BySpace<int64_t> bytes{};
  for (const Instruction& i : program.instructions)
    if (IsCopyLane(i.lane)) bytes[i.lane == Lane::kCopyOut ? Space::kHost : Space::kDevice] += CopiedBytes(program, i);
  return bytes;
}

std::vector<ProgramOfRun> ProgramsOfRun(const Deck& deck) {
  std::vector<ProgramOfRun> programs = {{Purpose::kTrain, deck}, {Purpose::kProof, deck}};
  if (Evaluates(deck)) programs.push_back({Purpose::kEvaluate, deck});
  for (const RampSize& size : BatchRamp(deck.batch).Sizes())
    if (size.sequences < deck.batch.global) programs.push_back({Purpose::kTrain, WithSequences(deck, size.sequences)});
  if (CopiesWeights(deck)) programs.push_back({Purpose::kCopies, deck});
  if (ComparesComputation(deck)) programs.push_back({Purpose::kGradients, deck});
  return programs;
}

std::string ProveWorld(const Compilation& c) {
  const std::vector<int> representative = ClassRepresentatives(c);
  if (std::string why = TooManyPrograms(c, representative); !why.empty()) return why;
  const std::map<int, Program> programs = MakePrograms(c, representative);
  CheckWorld(c.mesh, [&](int rank) -> const Program& { return programs.at(representative[rank]); });
  return "";
}

WorldPlan PlanWorld(const Deck& deck, int ranks) {
  std::vector<Compilation> compilations = CompileAll(deck, ranks);
  WorldPlan plan;
  plan.training = std::move(compilations[0]);
  compilations.erase(compilations.begin());
  const Compilation& c = plan.training;
  plan.representative = ClassRepresentatives(c);
  if (const std::string why = TooManyPrograms(c, plan.representative); !why.empty())
    throw UserError(ExitStatus::kDeck, "plan: " + why);
  for (std::vector<int>& layers : LayersOfStages(c))
    plan.stages.push_back({static_cast<int>(plan.stages.size()), std::move(layers), 0, {}});

  plan.programs = MakePrograms(c, plan.representative);
  const std::vector<ProgramFacts> facts = FactsOfPrograms(plan, compilations);
  std::map<int, int64_t> peak, on_host;
  for (auto fact = facts.begin(); const auto& [rank, program] : plan.programs) {
    peak[rank] = fact->peak_bytes;
    on_host[rank] = fact->host_bytes;
    StagePlan& stage = plan.stages[program.stage];
    if (fact->peak_bytes > stage.peak_bytes) {
      stage.peak_bytes = fact->peak_bytes;
      stage.bytes = program.peak_by_class;
    }
    if (fact->host_bytes > stage.host_bytes) {
      stage.host_bytes = fact->host_bytes;
      stage.host_bytes_by_class = program.host_by_class;
      stage.copied_bytes = CopiedBytes(program);
    }
    for (const auto& [lane, count] : fact->messages)
      if (MessageCount& most = plan.messages[lane]; count.bytes >= most.bytes) most = count;
    ++fact;
  }
  for (int rank : plan.representative) plan.rank_peak_bytes.push_back(peak.at(rank));
  for (int rank : plan.representative) plan.rank_host_bytes.push_back(on_host.at(rank));
  plan.peak_bytes = *std::max_element(plan.rank_peak_bytes.begin(), plan.rank_peak_bytes.end());
  plan.host_bytes = *std::max_element(plan.rank_host_bytes.begin(), plan.rank_host_bytes.end());
  CheckWorld(c.mesh, [&](int rank) -> const Program& { return plan.programs.at(plan.representative[rank]); });
  for (const Compilation& other : compilations)
    if (HasBackward(other.purpose)) ProveWorld(other);
  return plan;
}

}  // namespace espalier
