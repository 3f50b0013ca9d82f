// The communication instructions of one lane in one step, as MPI messages.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/meeting.hpp"
#include "comm/mpi/mpi_state.hpp"
#include "espalier/comm/lane_counts.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {

/// One instruction, lowered, with its communicator.
struct MpiInstruction {
  Instruction instruction;
  std::string label;
  int index;
  int number;  ///< among instructions with the same channel, lane and peer (MessageNumbers)
  Exchange exchange;
  MPI_Comm comm;
  std::function<void()> before, after;
  std::optional<Meeting> meeting;
  std::optional<MeetingMessages> meeting_messages;  ///< for a meeting; `exchange` has the buffers
};

/// The MPI requests of a phase.
class Requests {
 public:
  Requests(MpiState& state, int64_t largest_part) : state_(state), largest_part_(largest_part) {}

  /// Receives first, so that a message that arrives finds its buffer.
  void Post(const Phase& phase, int tag, MPI_Comm comm) {
    std::lock_guard lock(state_.mutex);
    for (const Message& m : phase.receives)
      ForEachPart(m, [&](std::byte* at, int bytes) {
        expected_.push_back(bytes);
        MPI_CALL(MPI_Irecv(at, bytes, MPI_BYTE, m.peer, tag, comm, Next()));
      });
    for (const Message& m : phase.sends)
      ForEachPart(
          m, [&](std::byte* at, int bytes) { MPI_CALL(MPI_Isend(at, bytes, MPI_BYTE, m.peer, tag, comm, Next())); });
    statuses_.resize(requests_.size());
  }

  bool Pending() const { return !requests_.empty(); }

  /// True once all requests are done; they are forgotten then.
  bool Test() {
    if (requests_.empty()) return true;
    int done = 0;
    {
      std::lock_guard lock(state_.mutex);
      const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
      if (code != MPI_SUCCESS) Fail(code);
    }
    if (done == 0) return false;
    CheckSizes();
    requests_.clear();
    expected_.clear();
    return true;
  }

 private:
  MPI_Request* Next() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  template <typename F>
  void ForEachPart(const Message& message, F f) {
    for (int64_t at = 0; at < message.bytes; at += largest_part_)
      f(message.data + at, static_cast<int>(std::min(largest_part_, message.bytes - at)));
  }

  void Fail(int code) const {
    for (const MPI_Status& status : statuses_)
      if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
        FailMpi("MPI_Testall", status.MPI_ERROR);
    FailMpi("MPI_Testall", code);
  }

  void CheckSizes() {
    for (size_t i = 0; i < expected_.size(); ++i) {
      int bytes = 0;
      MPI_CALL(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
      CHECK(bytes == expected_[i], "member {} sent {} bytes, {} are expected", statuses_[i].MPI_SOURCE, bytes,
            expected_[i]);
    }
  }

  MpiState& state_;
  int64_t largest_part_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_;  ///< bytes, by receive
};

using TimePoint = std::chrono::steady_clock::time_point;

/// The instructions of one lane in one step, one after the other.
class LaneQueue {
 public:
  /// Tags contain the number of the instruction and the low bits of the step. Order alone pairs messages, since lanes
  /// run in order on both sides; tags make sure that a message of another instruction is never taken for the expected
  /// one.
  LaneQueue(Lane lane, const std::vector<MpiInstruction>& instructions, LaneCounts& counts, Requests requests, int step)
      : lane_(lane), instructions_(instructions), counts_(counts), requests_(std::move(requests)), step_(step) {}

  bool Done() const { return head_ == instructions_.size(); }
  /// The head has begun: its messages are in flight, or its lane is held.
  bool Pending() const { return InFlight() || held_until_; }
  bool InFlight() const { return requests_.Pending(); }
  /// When the head ends, once all its members have arrived; empty if it is no meeting.
  const std::optional<TimePoint>& held_until() const { return held_until_; }
  /// Peers may wait for this rank: it has a message to send now, or in a later phase.
  bool PeersWait() const {
    if (!InFlight()) return false;
    const std::vector<Phase>& phases = Head().exchange.phases;
    return !phases[phase_].sends.empty() || phase_ + 1 < phases.size();
  }
  /// The next instruction to run, or the running one.
  const MpiInstruction& Head() const { return instructions_[head_]; }

  /// Makes all progress that is possible now; false if there is none.
  bool Advance() {
    if (Done()) return false;
    const MpiInstruction& instruction = Head();
    if (!begun_ && !counts_.Met(instruction.instruction.waits)) return false;
    const WorkScope scope(instruction.label);
    if (!begun_ && FaultAtInstruction(instruction.index) == InstructionFault::kSkip) return Next(), true;
    if (begun_) {
      if (!requests_.Test() || Held(instruction)) return false;
      Close(instruction.exchange.phases[phase_++]);
    }
    if (!begun_ && instruction.before) instruction.before();
    begun_ = true;
    if (phase_ < instruction.exchange.phases.size())
      Open(instruction);
    else
      Complete(instruction);
    return true;
  }

 private:
  void Open(const MpiInstruction& instruction) {
    const Phase& phase = instruction.exchange.phases[phase_];
    for (const StridedCopy& copy : phase.packs) Run(copy);
    if (instruction.meeting) instruction.meeting_messages->Write(arrival_ = instruction.meeting->arrive());
    requests_.Post(phase, static_cast<int>((int64_t{instruction.number} * kStepsApart + step_ % kStepsApart) % kTags),
                   instruction.comm);
    for (const StridedCopy& copy : phase.own) Run(copy);
  }
  /// All members of a meeting have arrived, but it has not ended.
  bool Held(const MpiInstruction& instruction) {
    if (!instruction.meeting) return false;
    if (!held_until_) held_until_ = instruction.meeting->meet(instruction.meeting_messages->Last(arrival_));
    counts_.progress().alive.fetch_add(1, std::memory_order_relaxed);
    return std::chrono::steady_clock::now() < *held_until_;
  }
  static void Close(const Phase& phase) {
    for (const StridedCopy& copy : phase.unpacks) Run(copy);
    for (const Reduction& reduction : phase.reductions) Run(reduction);
  }
  void Complete(const MpiInstruction& instruction) {
    if (instruction.after) instruction.after();
    Next();
  }
  void Next() {
    begun_ = false;
    held_until_.reset();
    phase_ = 0;
    ++head_;
    counts_.Raise(lane_);
  }

  static constexpr int kStepsApart = 4;
  static constexpr int kTags = 32768;  // every MPI library has at least this many

  Lane lane_;
  const std::vector<MpiInstruction>& instructions_;
  LaneCounts& counts_;
  Requests requests_;
  int step_;
  size_t head_ = 0;
  size_t phase_ = 0;
  bool begun_ = false;  ///< the messages of the head's phase are posted
  Arrival arrival_;     ///< arrival of this member, if the head is a meeting
  std::optional<TimePoint> held_until_;
};

}  // namespace espalier
