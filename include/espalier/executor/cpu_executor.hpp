// A program on the CPU: compute instructions run in the calling thread, one after the other. Communication instructions
// and copies are handed over at the start of the step and run concurrently; waits order them.
#pragma once

#include <chrono>

#include "espalier/executor/executor.hpp"

namespace espalier {

class CommClock;
class CopyLanes;

class CpuExecutor final : public Executor {
 public:
  /// `communication` may be null if nothing communicates. All of them must outlive it; the host may dereference both
  /// arenas.
  CpuExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory, Communication* communication,
              KernelFinder find_kernel, Abort abort = {});
  ~CpuExecutor() override;

  /// Runs the whole step.
  void Begin() override;
  StepTimes End() override { return times_; }
  void TimeNextStep() override;

 private:
  void Fill(const Operand& place, const void* data, int64_t bytes) override;
  void RunCalls();
  void AwaitLanes(std::span<const Wait> waits);
  void Abandon() override;
  void Copy(const HostCopy& copy);
  /// Measures every exchange.
  void AddClocks();
  /// Notes the span of a kernel that began at `begin` and ends now.
  void Record(int index, std::chrono::steady_clock::time_point begin);
  void Report();
  /// Microseconds since the step began.
  double Now() const;

  Communication* communication_;
  std::unique_ptr<PreparedComm> comm_;
  std::unique_ptr<CopyLanes> copy_lanes_;
  std::function<void(const HostCopy&)> make_copy_;
  std::vector<Span> copy_spans_;                 ///< by copy: of the current step
  std::unique_ptr<CommClock> comm_clock_;        ///< times of the current step
  std::vector<double> ready_us_;                 ///< by instruction: an exchange begins
  StepTimes times_;                              ///< times of the last step
  bool timed_ = false;                           ///< the next or current step measures every instruction
  std::chrono::steady_clock::time_point began_;  ///< begin of the last step
};

}  // namespace espalier
