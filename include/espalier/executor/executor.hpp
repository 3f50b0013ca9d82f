// Runs any program; decides nothing. What all devices share: tensors and kernels resolved in an arena, values by name,
// the instruction under way. How instructions are issued is the device's: CpuExecutor here, the cuda one in its module.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/comm/communicator.hpp"
#include "espalier/executor/arena.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// Where the time of a step went, on this rank.
struct StepTimes {
  double step_ms = 0;
  double compute_ms = 0;       ///< in kernels
  double exposed_comm_ms = 0;  ///< compute lane waiting for communication lanes
  double idle_ms = 0;          ///< the rest
};

/// A persistent value of this rank with its memory.
struct NamedTensor {
  std::string_view name;  ///< in the graph
  int microbatch = -1;
  Tensor tensor;
  const Type* type = nullptr;  ///< global shape and placements
};

class Executor {
 public:
  using KernelFinder = Kernel (*)(std::string_view op);
  /// Gets what failed and where; it should end the job. If it returns, the failure is thrown from the step.
  using Abort = std::function<void(const std::string& message)>;

  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// From now on `progress`, which must outlive it, says how far the step under way has come.
  void Mirror(Progress& progress) { lanes_.Mirror(progress); }
  /// Brings that up to date where the device alone knows how far it is; any thread may ask, at any time.
  virtual void ShowProgress() {}

  /// Sets an input for the next Begin(), on a stage that has it: `bytes` must be those of this rank's piece. Programs
  /// share the memory above the states, so every step needs all inputs again. A step under way is not disturbed.
  void SetInput(std::string_view name, int microbatch, const void* data, int64_t bytes);
  /// As SetInput, of an fp32 scalar such as a learning rate.
  void SetScalar(std::string_view name, float value, int microbatch = -1);

  /// Starts a step with the inputs as they are set. At most 1 + StepsAhead() may be under way.
  virtual void Begin() = 0;
  /// Awaits the oldest step under way. A failure in any thread goes to `abort`; it never hangs.
  virtual StepTimes End() = 0;
  /// How many steps may be begun before the oldest is awaited: 0 where Begin() does the work itself.
  virtual int StepsAhead() const { return 0; }
  StepTimes RunStep() {
    Begin();
    return End();
  }

  /// The step that is begun next keeps a clock on every instruction; a device that replays steps issues this one.
  virtual void TimeNextStep() = 0;
  /// Of the step that was timed, once it was awaited, by index in Program::instructions: milliseconds from when what
  /// the instruction waits for is there until it is finished. A message's hold the wait for its peer.
  const std::vector<double>& instruction_ms() const { return instruction_ms_; }

  /// An fp32 scalar. A result (loss, norm) is that of the step last awaited; for any other no step may be under way.
  virtual float GetScalar(std::string_view name, int microbatch = -1) const;

  /// A state, accumulator, input or result of this rank; CHECKs that it lives here. Its memory is the arena's: to be
  /// looked at through Arena::Read while no step is under way.
  Tensor At(std::string_view name, int microbatch = -1) const;
  /// All of a kind, in the order of the program.
  std::vector<NamedTensor> All(ValueKind kind) const;
  Arena& arena() const { return arena_; }

  /// Index of the instruction that the compute lane is at, -1 outside a step; any thread may ask.
  int CurrentInstruction() const { return current_.load(std::memory_order_relaxed); }
  /// "instruction 12 (matmul, role F, microbatch 2, layer 5)".
  std::string Describe(int instruction) const;

 protected:
  /// A kernel with everything it is called with.
  struct Call {
    int index;  ///< in Program::instructions
    Kernel kernel;
    const Attributes* attributes;
    std::vector<Tensor> inputs, outputs;
    std::byte* workspace;
    std::vector<Wait> waits;  ///< on other lanes
    int64_t end;              ///< of its highest buffer
  };

  /// Resolves every tensor and kernel of `program` for the rank at `coordinate`. CHECKs that all kernels exist, that
  /// all buffers are inside the arena and that the lanes' waits can all be met. `program` and `arena` must outlive it.
  Executor(const Program& program, const Coordinate& coordinate, Arena& arena, KernelFinder find_kernel, Abort abort);

  /// An input arrives from outside, for the next step.
  virtual void Fill(const Operand& place, const void* data, int64_t bytes) = 0;

  /// Ends what is under way in other threads; the step has failed.
  virtual void Abandon() = 0;
  /// Tells `abort` why the step failed, and throws it.
  [[noreturn]] void Fail(const std::string& message);

  const Op& OpOf(int instruction) const;
  const Instruction& InstructionAt(int index) const { return program_.instructions[static_cast<size_t>(index)]; }
  /// The call as a kernel gets it.
  KernelCall ArgumentsOf(const Call& call, void* stream = nullptr) const;

  const Program& program_;
  Coordinate coordinate_;
  Arena& arena_;
  Abort abort_;
  std::vector<Call> calls_;                 ///< of the compute lane, in program order
  std::vector<CommInstruction> exchanges_;  ///< of all other lanes, in program order
  std::vector<Wait> ends_;                  ///< every communication lane's last instruction
  int64_t persistent_end_ =
      0;  ///< of the highest buffer that no call names: persistent ones and those of communication
  LaneCounts lanes_;
  std::atomic<int> current_{-1};
  std::vector<double> instruction_ms_;  ///< empty: no step was timed

 private:
  Tensor Resolve(const Operand& operand) const;
  std::vector<Tensor> Resolve(const std::vector<Operand>& operands) const;
  Call ResolveCall(int index, KernelFinder find_kernel) const;
  CommInstruction ResolveComm(int index) const;
};

/// Calls f(first global element, first local element, count) for every run of elements that lie side by side both in
/// the local tensor and in the whole one of extents `whole` (row-major): how a piece is filled from, or written to, a
/// whole tensor.
template <typename F>
void ForEachGlobalRun(const Tensor& tensor, const Shape& whole, F f) {
  const int64_t count = Volume(tensor.shape);
  if (count == 0) return;
  const size_t rank = tensor.shape.size();
  const int64_t run = rank == 0 ? 1 : tensor.shape[rank - 1];
  for (int64_t local = 0; local < count; local += run) {
    int64_t rest = local, global = 0, stride = 1;
    for (size_t d = rank; d-- > 0; stride *= whole[d]) {
      global += (tensor.start[d] + rest % tensor.shape[d]) * stride;
      rest /= tensor.shape[d];
    }
    f(global, local, run);
  }
}

}  // namespace espalier
