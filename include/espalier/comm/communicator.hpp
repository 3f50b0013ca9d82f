// The small interface behind which the transports stand (MPI between CPUs; NCCL between GPUs can stand there too): a
// rank's communication instructions of one step are handed over at once, run on their lanes in order, each after its
// waits, and raise their lane's count when they are finished.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/lane_counts.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// What a communicator is for. Groups have one per lane; point-to-point has one per direction, so that a send up and a
/// send down between the same two stages never meet.
enum class Route : uint8_t { kGroup, kUp, kDown };

/// One communicator of this rank's: its group over `axes`, none of degree 1.
struct Channel {
  AxisSet axes;
  Lane lane = Lane::kTp;  ///< kPpSend for kUp and kDown: sender and receiver share the communicator
  Route route = Route::kGroup;
  auto operator<=>(const Channel&) const = default;
};

/// The channel of a communication instruction; its axes are empty if the group is this rank alone.
Channel ChannelOf(const Program& program, const Instruction& instruction);

/// Every channel that a program needs, sorted, each once.
std::vector<Channel> ChannelsOf(const Program& program);

/// Every channel that some rank named: the same list on all ranks, since making a communicator is everyone's business.
/// Collective.
std::vector<Channel> AgreeOnChannels(World& world, const std::vector<Channel>& mine);

/// A communication instruction with its tensors in memory.
struct CommInstruction {
  const Instruction* instruction = nullptr;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::byte* workspace = nullptr;
  std::string label;  ///< names it in messages: "instruction 12 (all_reduce, role S, layer 3)"
  int index = -1;     ///< in the program
  /// Called by the thread that communicates, if set: when the instruction's turn has come, before anything of it is
  /// read; and when all of it is written, before its lane is raised. What they throw fails the step.
  std::function<void()> before = {}, after = {};
};

/// A program's communication instructions, ready to run as often as wanted.
class PreparedComm {
 public:
  virtual ~PreparedComm() = default;
};

class Communication {
 public:
  virtual ~Communication() = default;

  /// Lowers the communication instructions of `program` (in program order; it must outlive the result) for the rank at
  /// `coordinate`. CHECKs that each stays within its planned workspace.
  virtual std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                                std::vector<CommInstruction> instructions) = 0;

  /// Starts a step: everything prepared begins to run, as `lanes` allows. Both must outlive Finish().
  virtual void Start(PreparedComm& prepared, LaneCounts& lanes) = 0;

  /// Returns when the step's communication is finished. Throws what failed, if it is not.
  virtual void Finish() = 0;
};

}  // namespace espalier
