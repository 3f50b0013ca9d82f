// The program of one rank for one step: a list of instructions with lanes, waits and byte offsets. The executor runs it
// and `espalier plan` prints it; neither decides anything. Ranks of one class share a program: rank coordinates enter
// only through groups (axes), relative peers and the boxes of local shards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/util/enum_array.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Instructions of one lane run in program order; lanes run concurrently. kCopyOut copies to the memory of the host,
/// kCopyIn from there.
enum class Lane : uint8_t { kCompute, kTp, kCp, kEp, kDp, kPpSend, kPpRecv, kCopyOut, kCopyIn };
inline constexpr int kLaneCount = 9;
template <typename T>
using ByLane = EnumArray<Lane, T, kLaneCount>;
inline constexpr ByLane<Lane> kLanes = {Lane::kCompute, Lane::kTp,     Lane::kCp,      Lane::kEp,    Lane::kDp,
                                        Lane::kPpSend,  Lane::kPpRecv, Lane::kCopyOut, Lane::kCopyIn};
std::string_view Name(Lane lane);

constexpr bool IsCopyLane(Lane lane) { return lane == Lane::kCopyOut || lane == Lane::kCopyIn; }
/// Its instructions are messages of other ranks, too.
constexpr bool IsMessageLane(Lane lane) { return lane != Lane::kCompute && !IsCopyLane(lane); }

/// The communication that a lane carries. CHECKs that it is not the compute lane.
constexpr CommAxis CommAxisOf(Lane lane) {
  constexpr ByLane<CommAxis> kCarried = {{CommAxis{}, CommAxis::kTp, CommAxis::kCp, CommAxis::kEp, CommAxis::kDp,
                                          CommAxis::kPp, CommAxis::kPp, CommAxis::kHost, CommAxis::kHost}};
  CHECK(lane != Lane::kCompute, "the compute lane has no communication axis");
  return kCarried[lane];
}

/// The purpose of a buffer, as `espalier plan` reports it.
enum class MemoryClass : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kCommunication, kWorkspace };
inline constexpr int kMemoryClassCount = 6;
template <typename T>
using ByMemoryClass = EnumArray<MemoryClass, T, kMemoryClassCount>;
std::string_view Name(MemoryClass memory_class);

/// The part of a value that this rank holds, at its place in the arena of the value's space.
struct Operand {
  int value = -1;      ///< in Program::graph
  int64_t offset = 0;  ///< bytes from the start of that arena
  int64_t bytes = 0;
};

/// "Do not start before the first `count` instructions of `lane` are finished." Counts restart with every step.
struct Wait {
  Lane lane = Lane::kCompute;
  int count = 0;
};

/// One op at one microbatch. Communication (IsCommunication of the op's kind) runs on communication lanes, copies to
/// and from the host run on copy lanes; every other op is a kernel on the compute lane.
struct Instruction {
  int op = -1;          ///< in Program::graph
  int microbatch = -1;  ///< -1: once per step
  Lane lane = Lane::kCompute;
  bool accumulate = false;  ///< add to the accumulators: every microbatch but the first, which overwrites them
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  Operand workspace;  ///< value -1; bytes 0 if none; of the device
  std::vector<Wait> waits;
};

/// A buffer that is live during the whole step: a state, accumulator, input or result.
struct PersistentBuffer {
  int value = -1;
  int microbatch = -1;  ///< inputs have one buffer per microbatch
  Operand place;
  MemoryClass memory_class = MemoryClass::kParameters;
};

/// The bytes of each operand that an op of a strip touches, from the start of the operand.
struct TouchedBytes {
  std::vector<std::vector<ByteRange>> inputs, outputs;
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
  /// By op: those that have strips. All other ops touch all bytes of their operands.
  std::map<int, TouchedBytes> touched;
  int64_t arena_bytes = 0;  ///< of the device: the peak, exactly
  int64_t host_bytes = 0;   ///< the same of the arena on the host; 0: nothing is there
  /// Bytes of each class at the moment of the peak.
  ByMemoryClass<int64_t> peak_by_class{}, host_by_class{};

  Space SpaceOf(const Operand& operand) const {
    return operand.value < 0 || graph == nullptr ? Space::kDevice : graph->value(operand.value).space;
  }
  /// The place of a persistent value; CHECKs that it is on this stage.
  const Operand& Find(std::string_view value_name, int microbatch = -1) const;
};

/// Bytes that a copy to or from the host moves: those of its operands on the device.
int64_t CopiedBytes(const Program& program, const Instruction& copy);

/// A box that one member of a communication op sends or receives. The executor and the message counts of `plan` use the
/// same pure function.
///
/// Collectives have n inputs and n outputs; tensor i goes from the placements of inputs[i] to those of outputs[i], over
/// the group op.Axes(). ring_shift passes every shard on to the next member, and from the last one to the first. All
/// tensors of an op share one message per peer.
struct Transfer {
  int tensor = 0;  ///< which input / output of the op
  int peer = 0;    ///< index in the group
  Box box;         ///< global indices
};

struct TransferPlan {
  AxisSet axes;         ///< the group
  bool reduce = false;  ///< received boxes are reduced over all members in group order, this one included
  Reduce how = Reduce::kSum;
  std::vector<Transfer> sends;     ///< by peer, then tensor; own index included (a local copy, or its contribution)
  std::vector<Transfer> receives;  ///< by peer, then tensor; own index included
};

/// The plan of a collective or ring_shift for the rank at `coordinate`. An all_reduce is planned as whole boxes to and
/// from every member; a backend may do it in two phases (reduce-scatter and all-gather of flat shards).
TransferPlan PlanTransfer(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes that this member sends for a collective, ring_shift or send, own boxes excluded; an all_reduce counts both of
/// its phases. (What gather_stages sends depends on the stage: its instruction lists the scalars.)
int64_t WireBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes of the workspace that a communication op has for packed sends and packed receives, the message of each peer
/// aligned to 64 bytes. Backends may not use more.
int64_t CommWorkspaceBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
