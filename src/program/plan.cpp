#include "espalier/program/plan.hpp"

#include <algorithm>
#include <set>

#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// By stage: layers 1..L of the graph as transformer layers from 0.
std::vector<std::vector<int>> LayersOfStages(const Compilation& c) {
  std::vector<std::vector<int>> stages(c.schedule.stages);
  for (const Op& op : c.graph->ops)
    if (op.role == Role::kF && !IsReshard(op.kind) && op.layer >= 1 && op.layer <= c.deck.model.layers)
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
  const double of_one = double(c.deck.model.layers) * (0.25 + double(c.batch.microbatches) / double(c.schedule.stages));
  if (double(different.size()) * of_one <= kMaxPasses) return "";
  return fmt::format(
      "{} ranks have {} different programs, each of about {:.0f} passes of a microbatch through a layer; "
      "one process compiles at most {:.0f} (choose sizes that the degrees divide, fewer microbatches, or "
      "fewer ranks)",
      c.mesh.Ranks(), different.size(), of_one, kMaxPasses);
}

/// The peak of the forward program of a rank, given its training program.
int64_t ForwardPeak(const Compilation& forward, const Program& training, const Coordinate& coordinate) {
  return MakeProgram(forward, coordinate, StateBytes(training)).arena_bytes;
}

}  // namespace

bool Evaluates(const Deck& deck) { return deck.data.validate_every_steps > 0 && !deck.data.validation.empty(); }

std::vector<Purpose> PurposesOf(const Deck& deck) {
  std::vector<Purpose> purposes = {Purpose::kTrain, Purpose::kProof};
  if (Evaluates(deck)) purposes.push_back(Purpose::kEvaluate);
  return purposes;
}

std::string ProveWorld(const Compilation& c) {
  const std::vector<int> representative = ClassRepresentatives(c);
  if (std::string why = TooManyPrograms(c, representative); !why.empty()) return why;
  std::map<int, Program> programs;
  for (int rank : representative)
    if (!programs.contains(rank)) programs.emplace(rank, MakeProgram(c, c.mesh.CoordinateOf(rank)));
  CheckWorld(c.mesh, [&](int rank) -> const Program& { return programs.at(representative[rank]); });
  return "";
}

WorldPlan PlanWorld(const Deck& deck, int ranks) {
  WorldPlan plan;
  plan.training = Compile(deck, ranks, Purpose::kTrain);
  const Compilation& c = plan.training;
  std::vector<Compilation> forward = {Compile(deck, ranks, Purpose::kProof)};
  if (Evaluates(deck)) forward.push_back(Compile(deck, ranks, Purpose::kEvaluate));
  plan.representative = ClassRepresentatives(c);
  if (const std::string why = TooManyPrograms(c, plan.representative); !why.empty())
    throw UserError(ExitStatus::kDeck, "plan: " + why);
  for (std::vector<int>& layers : LayersOfStages(c))
    plan.stages.push_back({static_cast<int>(plan.stages.size()), std::move(layers), 0, {}});

  std::map<int, int64_t> peak;
  for (int rank : plan.representative) {
    if (plan.programs.count(rank) > 0) continue;
    const Coordinate coordinate = c.mesh.CoordinateOf(rank);
    const Program& program = plan.programs.emplace(rank, MakeProgram(c, coordinate)).first->second;
    peak[rank] = program.arena_bytes;
    for (const Compilation& other : forward) peak[rank] = std::max(peak[rank], ForwardPeak(other, program, coordinate));
    StagePlan& stage = plan.stages[program.stage];
    if (peak[rank] > stage.peak_bytes) {
      stage.peak_bytes = peak[rank];
      stage.bytes = program.peak_by_class;
    }
    for (const auto& [lane, count] : CountMessages(program, coordinate))
      if (MessageCount& most = plan.messages[lane]; count.bytes >= most.bytes) most = count;
  }
  for (int rank : plan.representative) plan.rank_peak_bytes.push_back(peak.at(rank));
  plan.peak_bytes = *std::max_element(plan.rank_peak_bytes.begin(), plan.rank_peak_bytes.end());
  CheckWorld(c.mesh, [&](int rank) -> const Program& { return plan.programs.at(plan.representative[rank]); });
  return plan;
}

}  // namespace espalier
