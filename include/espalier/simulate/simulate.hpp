// Clocks over the programs of all ranks: a discrete-event simulation of one step. Lanes run in program order; waits,
// collectives and messages order them; transfers share ports; kernels slow down while transfers run. It runs the same
// programs as the executor and decides nothing. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// A part of the machine that is slower than the rest: everything of that kind on these ranks takes `factor` times its
/// normal time. A transfer takes the highest factor of its members. Factors of the same rank are multiplied.
struct Slow {
  enum class What : uint8_t { kCompute, kLinks } what = What::kCompute;
  int first_rank = 0, last_rank = 0;
  double factor = 1;
};

struct SimulateOptions {
  /// Ranks that must have the same times are simulated once (src/simulate/fold.cpp); false: every rank by itself. The
  /// times are bitwise the same.
  bool fold = true;
  /// While the rank transfers at its node port, kernels run at the rate (1 - node_slowdown); at its network port, at (1
  /// - network_slowdown); at both, at the product. k transfers at one port of a rank in the same direction get 1 / k of
  /// the rate each; a send uses one direction, a recv the other, a collective both. A transfer runs at the smallest
  /// share of its members. false: every instruction takes its own cost, as on the waiting device (run.device =
  /// "sleep").
  bool interference = true;
  /// Relative standard deviation of kernel times. A kernel takes max(0.1, 1 + jitter x) of its cost; x is standard
  /// normal, element 2^32 rank + instruction of the stream "simulate.jitter" of `seed` (NormalAt). Nothing is folded.
  double jitter = 0;
  uint64_t seed = 1234;
  std::vector<Slow> slow;
  bool record = false;  ///< fill Simulation::timeline
};

/// The programs of all ranks.
struct WorldPrograms {
  const Mesh& mesh;
  const std::vector<int>& representative;                         ///< by rank: the lowest rank with the same program
  std::function<std::shared_ptr<const Program>(int)> program_of;  ///< program of a representative
};

/// The purpose of an instruction.
enum class StepPart : uint8_t {
  kForward,
  kRecompute,  ///< forward again, for backward
  kBackward,
  kDispatch,  ///< rows of experts are copied; tokens, or the gradients of outputs, are gathered over ranks of ep
  kCombine,   ///< rows of experts, or their gradients, are added up, on this rank and over ranks of ep
  kUpdate,    ///< once per step: the last sums of gradients, their norm, updates, copies of weights
};
inline constexpr int kStepPartCount = 6;
template <typename T>
using ByStepPart = EnumArray<StepPart, T, kStepPartCount>;
std::string_view Name(StepPart part);
StepPart PartOf(const Graph& graph, const Op& op);

/// Kernels and transfers of one part of the step.
struct PartTimes {
  double kernels_us = 0;
  double exposed_us = 0;  ///< the compute lane waits for a transfer of the part, as in Breakdown
  double hidden_us = 0;   ///< all other time in which one is in progress
  bool operator==(const PartTimes&) const = default;
};

/// The step of one class of ranks that have the same times.
struct RankTimes {
  int rank = 0;   ///< the lowest one
  int ranks = 1;  ///< their number
  int stage = 0;
  double end_us = 0;    ///< end of the rank's last instruction
  Breakdown breakdown;  ///< breakdown of the whole step
  /// The same by purpose: the kernels of all parts are breakdown.compute_us, their exposed times those of all axes.
  ByStepPart<PartTimes> parts{};
  /// Costs of all its instructions, kernels and transfers, by their origin; slow parts, jitter and interference are not
  /// included.
  ByCostSource<double> by_source_us{};
};

struct Simulation {
  double step_us = 0;
  std::vector<RankTimes> classes;  ///< by their lowest rank
  std::vector<int> class_of_rank;  ///< index in `classes`
  Timeline timeline;               ///< empty unless recorded; one track per class
  int64_t events = 0;              ///< instructions that were simulated

  /// The class whose own work ends last; the first of several.
  const RankTimes& Slowest() const;
};

/// Simulates a step. A collective begins when its last member is ready, and ends for all of them at the same time; so
/// does a message. It takes the highest cost of its members. CHECKs that the programs match (CheckWorld proves it
/// before); a deadlock is an InvariantError that names ranks, lanes and instructions.
Simulation Simulate(const WorldPrograms& world, const Costs& costs, const SimulateOptions& options = {});

/// The same with given costs: `cost_of(rank)` has one entry per instruction of that rank's program. For tests with
/// uniform costs; ranks of equal program must have equal costs.
Simulation Simulate(const WorldPrograms& world, const std::function<std::vector<InstructionCost>(int rank)>& cost_of,
                    const Cluster& cluster, const SimulateOptions& options = {});

}  // namespace espalier
