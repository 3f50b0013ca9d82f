// Worlds of small decks with invented costs.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "espalier/program/compile.hpp"
#include "espalier/simulate/simulate.hpp"
#include "espalier/util/philox.hpp"
#include "program/program_testing.hpp"

namespace espalier {

/// The programs of all ranks, each once.
class CompiledWorld {
 public:
  CompiledWorld(const std::vector<std::string>& overrides, int ranks)
      : compilation(Compile(SmallDeck(overrides), ranks, Purpose::kTrain)),
        representative(ClassRepresentatives(compilation)) {
    for (int rank : representative)
      if (!programs.contains(rank))
        programs[rank] = std::make_shared<Program>(MakeProgram(compilation, compilation.mesh.CoordinateOf(rank)));
  }

  WorldPrograms Programs() const {
    return {compilation.mesh, representative, [this](int rank) { return programs.at(rank); }};
  }
  const Program& Of(int rank) const { return *programs.at(representative[static_cast<size_t>(rank)]); }
  int Ranks() const { return compilation.mesh.Ranks(); }

  Compilation compilation;
  std::vector<int> representative;
  std::map<int, std::shared_ptr<const Program>> programs;  ///< by representative
};

/// Costs of a rank's program; `us` and `port` compute them from the op.
template <typename Us, typename PortOf>
std::function<std::vector<InstructionCost>(int)> CostsBy(const CompiledWorld& world, Us us, PortOf port) {
  return [&world, us, port](int rank) {
    std::vector<InstructionCost> costs;
    const Program& program = world.Of(rank);
    for (const Instruction& i : program.instructions)
      costs.push_back({us(program, i), CostSource::kFormula, port(program, i)});
    return costs;
  };
}

/// A number in (0, 1] for a key; the same on every machine.
inline double Draw(uint64_t seed, uint64_t key) {
  return static_cast<double>((Mix64(seed ^ Mix64(key)) >> 11) + 1) * 0x1p-53;
}

inline bool IsKernel(const Instruction& i) { return i.lane == Lane::kCompute; }

/// Random costs by op: kernels of up to 10 us, transfers of up to 10 us at random ports. A recv costs as much as its
/// send.
inline std::function<std::vector<InstructionCost>(int)> RandomCosts(const CompiledWorld& world, uint64_t seed,
                                                                    double transfer_us = 10) {
  const auto key = [](const Program& program, const Instruction& i) {
    return static_cast<uint64_t>(i.op) - (program.graph->op(i.op).kind == OpKind::kRecv ? 1 : 0);
  };
  return CostsBy(
      world,
      [=](const Program& program, const Instruction& i) {
        return Draw(seed, key(program, i)) * (IsKernel(i) ? 10 : transfer_us);
      },
      [=](const Program& program, const Instruction& i) {
        return IsKernel(i) ? Port::kNone : Draw(seed + 1, key(program, i)) < 0.5 ? Port::kNode : Port::kNetwork;
      });
}

inline Cluster SlowingCluster() {
  Cluster cluster;
  cluster.ranks_per_node = 8;
  cluster.node_slowdown = 0.15;
  cluster.network_slowdown = 0.05;
  return cluster;
}

}  // namespace espalier
