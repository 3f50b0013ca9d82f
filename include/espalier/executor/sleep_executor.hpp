// Runs a program on a device that only waits: every instruction takes its cost on a cluster, multiplied by a dilation.
// Lanes, waits and the synchronization of ranks are the same as on CPUs; no kernel runs and no memory is touched.
// doc/sleep.md has the rules of its clock.
#pragma once

#include <chrono>

#include "espalier/executor/executor.hpp"

namespace espalier {

class CopyLanes;

/// The memory of a rank that only waits: reserved addresses without pages. Any access ends the process.
class ReservedArena final : public Arena {
 public:
  /// Throws UserError (kDoesNotFit) if the system cannot reserve the addresses.
  explicit ReservedArena(int64_t bytes);
  ~ReservedArena() override;

  bool OnHost() const override { return false; }
  /// CHECKs fail: there is nothing to read or write.
  void Read(const void* from, void* to, int64_t bytes) const override;
  void Write(void* to, const void* from, int64_t bytes) override;

 private:
  size_t mapped_ = 0;
};

/// All reported times are cluster times: clock times divided by the dilation.
class SleepExecutor final : public Executor {
 public:
  /// Instruction i of `program` takes costs_us[i] x dilation. Inputs have no effect; results are NaN. `communication`
  /// may be null if nothing communicates. All of them must outlive it.
  SleepExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                Communication* communication, const std::vector<double>& costs_us, double dilation, Abort abort = {});
  ~SleepExecutor() override;

  /// Runs the whole step.
  void Begin() override;
  StepTimes End() override { return times_; }
  void TimeNextStep() override { timed_ = true; }
  float GetScalar(std::string_view name, int microbatch = -1) const override;

 private:
  using Clock = std::chrono::steady_clock;
  /// When an instruction ran in this step. Its lane's thread writes it before it raises the lane.
  struct Moments {
    Clock::time_point ready, begin, end;
    Clock::duration late{0};  ///< the part of the lateness that counts as a delay
  };

  void Fill(const Operand&, const void*, int64_t) override {}
  void Abandon() override;
  void MeetInsteadOfExchanging();
  void RunCalls();
  /// A kernel or a copy: arrives, and sleeps for its time.
  void Pass(int index);
  void Arrive(int index);
  Clock::time_point ReadyOf(int index) const;
  void SleepUntil(Clock::time_point end);
  void Report(Clock::time_point now);
  double ClusterUs(Clock::duration time) const;

  Communication* communication_;
  std::unique_ptr<PreparedComm> comm_;
  std::unique_ptr<CopyLanes> copy_lanes_;
  std::function<void(const HostCopy&)> make_copy_;
  const double dilation_;
  std::vector<std::chrono::nanoseconds> takes_;  ///< by instruction
  ByLane<std::vector<int>> of_lane_;             ///< instructions, in order
  std::vector<int> place_;                       ///< by instruction: its position in its lane
  std::vector<Moments> moments_;                 ///< by instruction
  Clock::time_point began_;                      ///< begin of the step
  StepTimes times_;                              ///< times of the last step
  bool timed_ = false;                           ///< the next or current step measures every instruction
};

}  // namespace espalier
