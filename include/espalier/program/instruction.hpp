// What one rank does in one step: a list of instructions with lanes, waits and byte offsets. The executor runs it, the
// simulator times it, the plan prints it; none of them decides anything. Ranks of one class share a program: rank
// coordinates enter only through groups (axes), relative peers and the boxes of local pieces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/mesh/mesh.hpp"

namespace espalier {

/// Instructions of one lane run in program order; lanes run side by side.
enum class Lane : uint8_t { kCompute, kTp, kCp, kDp, kPpSend, kPpRecv, kCopy };
inline constexpr int kLaneCount = 7;
std::string_view Name(Lane lane);

/// What memory is for, in the words of `plan`.
enum class MemoryClass : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kCommunication, kWorkspace };
inline constexpr int kMemoryClassCount = 6;
std::string_view Name(MemoryClass memory_class);

/// A value's local piece at a place in the arena.
struct Operand {
  int value = -1;      ///< in Program::graph
  int64_t offset = 0;  ///< bytes from the start of the arena
  int64_t bytes = 0;
};

/// "Do not start before the first `count` instructions of `lane` are finished." Counts restart with every step.
struct Wait {
  Lane lane = Lane::kCompute;
  int count = 0;
};

/// One op at one microbatch. Communication kinds ("all_gather", "reduce_scatter", "all_reduce", "all_to_all",
/// "ring_shift", "send", "recv", "gather_stages") run on communication lanes; every other kind is a kernel on the
/// compute lane.
struct Instruction {
  int op = -1;          ///< in Program::graph
  int microbatch = -1;  ///< -1: once per step
  Lane lane = Lane::kCompute;
  bool accumulate = false;  ///< add to the accumulators (every microbatch but the first)
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  Operand workspace;  ///< value -1; bytes 0 if none
  std::vector<Wait> waits;
};

/// A buffer that lives through the whole step: states, accumulators, inputs, results.
struct PersistentBuffer {
  int value = -1;
  int microbatch = -1;  ///< inputs have one buffer per microbatch
  Operand place;
  MemoryClass memory_class = MemoryClass::kParameters;
};

struct Program {
  std::shared_ptr<const Graph> graph;
  Mesh mesh;
  DeviceKind device = DeviceKind::kCpu;
  int stage = 0;
  int microbatches = 1;
  std::vector<int> stage_of_chunk;  ///< by global chunk
  std::vector<PersistentBuffer> persistent;
  std::vector<Instruction> instructions;
  int64_t arena_bytes = 0;  ///< the peak, exactly
  /// Bytes of each class at the moment of the peak.
  std::array<int64_t, kMemoryClassCount> peak_by_class{};

  /// Place of a persistent value; CHECKs that it is there.
  const Operand& Find(std::string_view value_name, int microbatch = -1) const;
};

/// True for the op kinds that run on communication lanes.
bool IsCommunication(std::string_view op_kind);

/// What one member of a communication op sends and receives: the same pure function serves the executor, the world
/// checker, the message counts of `plan` and the simulator.
///
/// Group ops ("all_gather", "reduce_scatter", "all_reduce", "all_to_all") have n inputs and n outputs; tensor i goes
/// from inputs[i]'s placements to outputs[i]'s, over the axes in attribute "axes" (an AxisSet as bits). "ring_shift"
/// passes every piece on to the next member, the last one's to the first. All tensors of one op travel in one message
/// per peer.
struct Transfer {
  int tensor = 0;  ///< which input / output of the op
  int peer = 0;    ///< index in the group
  Box box;         ///< global indices
};

struct TransferPlan {
  AxisSet axes;         ///< the group
  bool reduce = false;  ///< received pieces are joined over peers in group order (own piece in its place)
  Reduce how = Reduce::kSum;
  std::vector<Transfer> sends;     ///< by peer, then tensor; own index included (a local copy or own contribution)
  std::vector<Transfer> receives;  ///< by peer, then tensor; own index included
};

/// The plan of a group op for the rank at `coordinate`. "all_reduce" is planned as whole boxes to and from everyone; a
/// backend may do it in two phases (reduce-scatter and all-gather of flat pieces).
TransferPlan PlanTransfer(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes this member puts on the wire for a group op or send (own pieces excluded); all_reduce counts its two phases.
/// (What gather_stages sends depends on the stage: its instruction lists the scalars.)
int64_t WireBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes of staging (packed sends, then packed receives, each peer's message 64-byte aligned) that the MPI backend
/// needs for a communication op: the planned workspace, which the backend may not exceed.
int64_t CommWorkspaceBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
