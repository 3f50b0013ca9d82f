// The interface of transports that a host thread drives (MPI). A rank hands over all communication instructions of a
// step at once. They run in order on each lane, each after its waits, and raise the count of their lane when they are
// finished. Transports on streams (NCCL): stream_communication.hpp.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/comm/lane_counts.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// The purpose of a communicator. Groups have one per lane; messages between stages have one per direction, so that a
/// send up and a send down between the same two stages are never confused.
enum class Route : uint8_t { kGroup, kUp, kDown };

/// One communicator of this rank: its group over `axes`, none of degree 1.
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

/// All channels that any rank names: the same list on all ranks, since all ranks take part in making a communicator.
/// Collective.
std::vector<Channel> AgreeOnChannels(World& world, const std::vector<Channel>& mine);

/// When a member arrived at an instruction, and how long the instruction then takes.
struct Arrival {
  std::chrono::steady_clock::time_point at;
  std::chrono::nanoseconds takes{0};
};

/// How an instruction runs on a device that only waits: the instruction synchronizes its members, then holds its lane
/// for a time. The communication thread calls both functions. An exception fails the step.
struct Meeting {
  /// The instruction begins: this member arrives.
  std::function<Arrival()> arrive;
  /// All members have arrived, the last one at `last.at`; `last.takes` is the longest of their times. Returns when the
  /// instruction ends.
  std::function<std::chrono::steady_clock::time_point(const Arrival& last)> meet;
};

/// A communication instruction with its tensors in memory.
struct CommInstruction {
  Instruction instruction;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::byte* workspace = nullptr;
  std::string label;  ///< its name in messages: "instruction 12 (all_reduce, role S, layer 3)"
  int index = -1;     ///< in the program
  /// Called by the communication thread, if set: `before` when the instruction begins, before its inputs are read;
  /// `after` when its outputs are written, before its lane is raised. An exception fails the step.
  std::function<void()> before = {}, after = {};
  /// If set, no data are exchanged, and no memory of the tensors is touched: every member sends every other one a
  /// message with its arrival and at most kMeetingBytes in place of the data.
  std::optional<Meeting> meeting = {};
};

/// The largest number of bytes that a message of a meeting has besides the arrival.
inline constexpr int64_t kMeetingBytes = 1024;

/// The communication instructions of a program, ready to run in any number of steps.
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

  /// Starts a step: the prepared instructions run as `lanes` allows. Both must outlive Finish().
  virtual void Start(PreparedComm& prepared, LaneCounts& lanes) = 0;

  /// Waits until the communication of the step is finished. Throws if it failed.
  virtual void Finish() = 0;
};

}  // namespace espalier
