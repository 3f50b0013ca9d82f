// Facts of a graph that the planners of programs ask for again and again, found once for all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/ops/op.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

struct OpFacts {
  Lane lane = Lane::kCompute;
  bool sums = false;   ///< an output is an accumulator
  bool adds = false;   ///< Op::Adds
  int signature = -1;  ///< ops with equal numbers have equal workspaces and messages on every rank
  const std::vector<InPlace>* in_place = nullptr;
  int strip = -1;  ///< which strip of its outputs the op computes or moves; -1: all rows
};

struct ValueFacts {
  bool persistent = false;  ///< not an activation, or a result of the step
  bool of_step = false;     ///< one buffer per step, not one per microbatch
  int last_writer = -1;     ///< the last op that makes it or adds to it
  MemoryClass memory_class = MemoryClass::kActivations;
  int block = -1;  ///< of neighbours that it belongs to; -1: none
};

struct GraphFacts {
  explicit GraphFacts(const Graph& graph);

  std::vector<OpFacts> ops;
  std::vector<ValueFacts> values;
  /// Values that follow one another in memory (OpDefinition::neighbours). All but the last of a block have a multiple
  /// of kAlignment bytes on every rank (pass `join`).
  std::vector<std::vector<int>> blocks;
  int signatures = 0;  ///< numbers of OpFacts::signature are below

 private:
  void AddBlock(const std::vector<int>& operands, const Neighbours::Operands& neighbours);
};

}  // namespace espalier
