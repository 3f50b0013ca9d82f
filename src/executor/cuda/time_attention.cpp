#include "time_attention.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/kernels/cuda/fill_with_numbers.hpp"
#include "espalier/kernels/cuda/stopwatch.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/memory.hpp"
#include "handles.hpp"

namespace espalier::cuda {
namespace {

constexpr double kRoundMicroseconds = 20000;
constexpr int kMaxRepetitions = 50;

/// The call that makes o and lse. The inputs of backward end with o, lse and dO; before them are q, k and v, or one
/// tensor with all three.
struct ForwardOperands {
  std::vector<Tensor> inputs, outputs;

  explicit ForwardOperands(const std::vector<Tensor>& of_backward)
      : inputs(of_backward.begin(), of_backward.end() - 3), outputs(of_backward.end() - 3, of_backward.end() - 1) {}
  KernelCall Call(const Attributes& attributes) const {
    return {.inputs = inputs, .outputs = outputs, .attributes = &attributes};
  }
};

/// Bytes of the workspace that forward and backward use after each other.
int64_t SharedWorkspace(const AttentionDemand& demand, int64_t of_backward) {
  const ForwardOperands forward(demand.inputs);
  return std::max({PlannedWorkspace("attention", forward.Call(demand.attributes)), of_backward, int64_t{1}});
}

/// Operands of backward in separate memory, after forward has computed o and lse.
class Backward {
 public:
  Backward(const AttentionDemand& demand, int64_t workspace_bytes)
      : workspace_bytes_(workspace_bytes),
        workspace_(static_cast<size_t>(SharedWorkspace(demand, workspace_bytes))),
        attributes_(demand.attributes),
        inputs_(Place(demand.inputs)),
        outputs_(Place(demand.outputs)) {
    for (const Tensor& x : inputs_) FillWithNumbers(x.data, Volume(x.shape) * SizeOf(x.dtype), x.dtype);
    Forward();
    PrepareCudaKernel("attention_grad", Call());
    Microseconds(1);  // the first one loads the kernel
  }

  /// Mean time of a call, over `repetitions` consecutive calls.
  double Microseconds(int repetitions) const {
    return watch_.Microseconds(repetitions, [this] { kernel_(Call()); });
  }

 private:
  std::vector<Tensor> Place(std::vector<Tensor> tensors) {
    for (Tensor& x : tensors) {
      memory_.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(Volume(x.shape) * SizeOf(x.dtype))));
      x.data = memory_.back()->data();
    }
    return tensors;
  }

  void Forward() {
    const ForwardOperands forward(inputs_);
    KernelCall call = forward.Call(attributes_);
    call.stream = stream_.Get();
    call.workspace_bytes = PlannedWorkspace("attention", call);
    call.workspace = workspace_.data();
    PrepareCudaKernel("attention", call);
    FindCudaKernel("attention")(call);
    CUDA_CALL(cudaStreamSynchronize(stream_.Get()));
  }

  KernelCall Call() const {
    return {.inputs = inputs_,
            .outputs = outputs_,
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_bytes_,
            .attributes = &attributes_,
            .stream = stream_.Get()};
  }

  const int64_t workspace_bytes_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  const DeviceMemory workspace_;
  const Attributes attributes_;
  const std::vector<Tensor> inputs_, outputs_;
  const Stream stream_{Urgency::kLow};
  const Kernel kernel_ = FindCudaKernel("attention_grad");
  const Stopwatch watch_{stream_.Get()};
};

/// Throws UserError (kDoesNotFit) if the operands and the workspace of a call do not fit into free memory.
void RequireMemory(const AttentionDemand& demand, int64_t workspace_bytes) {
  int64_t needed = SharedWorkspace(demand, workspace_bytes);
  for (const std::vector<Tensor>* tensors : {&demand.inputs, &demand.outputs})
    for (const Tensor& x : *tensors) needed += Volume(x.shape) * SizeOf(x.dtype);
  size_t free = 0, total = 0;
  CUDA_CALL(cudaMemGetInfo(&free, &total));
  if (needed > static_cast<int64_t>(free))
    throw UserError(ExitStatus::kDoesNotFit, fmt::format("it needs {} of memory, and {} are free", Gigabytes(needed),
                                                         Gigabytes(static_cast<int64_t>(free))));
}

}  // namespace

AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t workspace_bytes) {
  RequireMemory(demand, workspace_bytes);
  const SeparateFallbacks separate;
  const Backward backward(demand, workspace_bytes);
  const double rounds = kRoundMicroseconds / std::max(backward.Microseconds(1), 1.0);
  const int repetitions = static_cast<int>(std::clamp(rounds, 1.0, double{kMaxRepetitions}));
  return {backward.Microseconds(repetitions), TakeFallbacks()};
}

}  // namespace espalier::cuda
