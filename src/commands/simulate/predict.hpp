// The step of a deck on a cluster: printed by `simulate`, and in short by `plan --cluster`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands/plan/memory_choice.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/simulate/simulate.hpp"

namespace espalier {

/// The cluster on which a deck is timed, and the device that its programs are compiled for.
struct Target {
  Cluster cluster;
  RunDevice device = RunDevice::kCuda;  ///< kCpu or kCuda
  std::string reason;                   ///< why that device
  Routing routing = {};                 ///< of tokens to experts
  bool interference = true;             ///< false for run.device = "sleep", whose kernels and links do not interfere
};

/// Reads the cluster file: `path`, or run.cluster of a deck that sleeps if `path` is empty. The device is the
/// cluster's. Throws UserError (kDeck) with the remedy if there is no file, or if the deck asks for another device.
Target ChooseTarget(const LoadedDeck& loaded, const std::string& path);

struct Prediction {
  Target target;
  std::optional<MemoryChoice> memory;  ///< of a deck that leaves memory open
  WorldPlan plan;
  Simulation simulation;        ///< simulation of a step with batch.global sequences
  std::vector<double> ramp_us;  ///< times of a step for each batch size of the run's ramp, including batch.global
  double plan_ms = 0, simulate_ms = 0;  ///< how long this took here

  const Deck& deck() const { return plan.training.deck; }
  int ranks() const { return plan.training.mesh.Ranks(); }
  int nodes() const { return (ranks() + target.cluster.ranks_per_node - 1) / target.cluster.ranks_per_node; }
};

/// Compiles the programs of all ranks and simulates a step. `options.interference` is the target's. Throws as
/// PlanWorld.
Prediction Predict(const Deck& deck, int ranks, Target target, SimulateOptions options);

/// Simulates a step of a plan.
Simulation SimulatePlan(const WorldPlan& plan, const Target& target, SimulateOptions options);

}  // namespace espalier
