// Runs any program; decides nothing. The base of all devices: tensors and kernels resolved in an arena, values by name,
// the current instruction. Derived classes issue the instructions: CpuExecutor here, the GPU ones in their module.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/comm/communication.hpp"
#include "espalier/executor/arena.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/program/instruction.hpp"
#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// The time of a step by activity, on this rank.
struct StepTimes {
  double step_ms = 0;
  double compute_ms = 0;               ///< in kernels
  double exposed_comm_ms = 0;          ///< the compute lane waits for communication lanes
  double idle_ms = 0;                  ///< the rest
  std::optional<CommTimes> comm = {};  ///< by axis; exposed_comm_ms is its sum. None: unknown in this step
  double late_ms = 0;                  ///< how late waits ended on a waiting device because the host was too slow
};

/// A persistent value of this rank with its memory.
struct NamedTensor {
  std::string_view name;  ///< in the graph
  int microbatch = -1;
  Tensor tensor;
  const Type* type = nullptr;  ///< global shape and placements
  Arena* arena = nullptr;      ///< that `tensor` is in
};

/// The arenas of a rank.
struct Memory {
  Memory(Arena& of_device, Arena* on_host = nullptr) : device(of_device), host(on_host) {}

  Arena& device;
  Arena* host;  ///< null: nothing is on the host
};

/// A copy between the memories of a rank.
struct HostCopy {
  struct Part {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  Instruction instruction;
  int index = -1;  ///< in Program::instructions
  std::vector<Part> parts;
};

class Executor {
 public:
  using KernelFinder = Kernel (*)(std::string_view op);
  /// Receives the error message; it should end the job. If it returns, the step throws the error.
  using Abort = std::function<void(const std::string& message)>;

  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Reports the progress of steps to `progress`, which must outlive the executor.
  void Mirror(Progress& progress) { lanes_.Mirror(progress); }
  /// Updates the progress if only the device knows it. Any thread may call this at any time.
  virtual void ShowProgress() {}

  /// Sets an input for the next Begin(), on a stage that has it; `bytes` must be the size of this rank's shard.
  /// Programs share the memory above the states, so every step needs all inputs again. The current step is not
  /// affected.
  void SetInput(std::string_view name, int microbatch, const void* data, int64_t bytes);
  /// The same for an fp32 scalar, such as the learning rate.
  void SetScalar(std::string_view name, float value, int microbatch = -1);

  /// Starts a step with the inputs that were set. At most 1 + StepsAhead() steps may be in flight.
  virtual void Begin() = 0;
  /// Waits for the oldest step in flight. An error in any thread goes to `abort`; End() never hangs.
  virtual StepTimes End() = 0;
  /// How many more steps may begin before the oldest is awaited; 0 if Begin() itself runs the step.
  virtual int StepsAhead() const { return 0; }
  StepTimes RunStep() {
    Begin();
    return End();
  }

  /// The next step measures every instruction. A device that replays a captured graph issues this step anew.
  virtual void TimeNextStep() = 0;
  /// Times of the last timed step, after End(), by index in Program::instructions; empty if none was timed. Times count
  /// from TimedStepBegan(). A span of a transfer begins when this rank is ready; only its peers know when they are
  /// (MeetPeers).
  const std::vector<Span>& spans() const { return spans_; }
  /// When the last timed step began, on this host's steady_clock, in microseconds.
  double TimedStepBegan() const { return timed_step_began_us_; }
  /// The same spans as lengths from ready (all waits met) to done, in ms. For messages this includes waiting for the
  /// peer.
  std::vector<double> instruction_ms() const;

  /// An fp32 scalar. A result (loss, norm) belongs to the last step that ended; to read any other value, no step may be
  /// in flight.
  virtual float GetScalar(std::string_view name, int microbatch = -1) const;
  /// As above, with all elements of an fp32 value.
  virtual std::vector<float> GetNumbers(std::string_view name) const;

  /// A state, accumulator, input or result; CHECKs that it is on this rank. It is memory of the arena of its space:
  /// read it through Arena::Read while no step is in flight.
  Tensor At(std::string_view name, int microbatch = -1) const;
  /// All persistent values of a kind, in program order.
  std::vector<NamedTensor> All(ValueKind kind) const;
  /// The arena of the device.
  Arena& arena() const { return arena_; }

  /// Index of the instruction that the compute lane is running, -1 outside a step. Any thread may call this.
  int CurrentInstruction() const { return current_.load(std::memory_order_relaxed); }
  /// "instruction 12 (matmul, role F, microbatch 2, layer 5)".
  std::string Describe(int instruction) const;

 protected:
  /// Operands of one kernel call; for several blocks of rows, the operands of the first block (KernelCall::blocks).
  struct Operands {
    std::vector<Tensor> inputs, outputs;
    int64_t blocks = 1, input_stride_bytes = 0, output_stride_bytes = 0;
  };
  /// A kernel with its arguments.
  struct Call {
    int index;  ///< in Program::instructions
    Kernel kernel;
    const Attributes* attributes;
    /// One block with all rows. A strip has one block per contiguous range of rows, and none if it has no rows.
    std::vector<Operands> blocks;
    std::byte* workspace;
    std::vector<Wait> waits;  ///< on other lanes
    int64_t end;              ///< end of its highest buffer, in bytes
  };

  /// Resolves every tensor and kernel of `program` for the rank at `coordinate`. CHECKs that all kernels exist, that
  /// all buffers are inside the arenas and that the waits of the lanes cannot deadlock. `program` and the arenas must
  /// outlive it.
  Executor(const Program& program, const Coordinate& coordinate, const Memory& memory, KernelFinder find_kernel,
           Abort abort);

  /// Stores an input for the next step.
  virtual void Fill(const Operand& place, const void* data, int64_t bytes) = 0;

  /// Stops the other threads of a step that failed.
  virtual void Abandon() = 0;
  /// Reports an error to `abort`, then throws it.
  [[noreturn]] void Fail(const std::string& message);

  const Op& OpOf(int instruction) const;
  Instruction InstructionAt(int index) const { return program_.instructions[static_cast<size_t>(index)]; }
  /// The arguments of a kernel call, for one of its blocks.
  KernelCall ArgumentsOf(const Call& call, const Operands& block, void* stream = nullptr) const;

  /// Notes the memory that a step uses besides that of kernel calls.
  void UseMemory();

  const Program& program_;
  Coordinate coordinate_;
  Arena& arena_;
  Arena* host_;  ///< null: nothing is on the host
  Abort abort_;
  std::vector<Call> calls_;                 ///< calls of the compute lane, in program order
  std::vector<CommInstruction> exchanges_;  ///< transfers of the message lanes, in program order
  std::vector<HostCopy> copies_;            ///< copies of the copy lanes, in program order
  std::vector<Wait> ends_;                  ///< the last instruction of every lane but the compute lane
  /// By space: end of the highest buffer that no kernel call uses: persistent buffers, those of messages and copies.
  BySpace<int64_t> persistent_end_{};
  LaneCounts lanes_;
  std::atomic<int> current_{-1};
  std::vector<Span> spans_;         ///< by instruction
  double timed_step_began_us_ = 0;  ///< on the steady_clock

 private:
  Tensor Resolve(const Operand& operand) const;
  std::vector<Tensor> Resolve(const OperandList& operands) const;
  Tensor ResolveBox(const Operand& operand, const Box& box) const;
  std::vector<Tensor> ResolveTransfers(const OperandList& operands, const std::vector<std::vector<Box>>& boxes) const;
  std::vector<Operands> ResolveBlocks(const Instruction& instruction, const Op& op) const;
  Arena& ArenaOf(const Operand& operand) const;
  void NoteEnd(const Operand& operand);
  HostCopy ResolveCopy(int index) const;
  Call ResolveCall(int index, KernelFinder find_kernel) const;
  CommInstruction ResolveComm(int index) const;
};

/// Calls f(first global element, first local element, count) for every run of elements that are contiguous both in the
/// shard and in the whole tensor of extents `whole` (row-major): to fill a shard from a whole tensor, or the reverse.
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
