#include "time_attention.hpp"

#include <algorithm>
#include <memory>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/kernels/cuda/fill_with_numbers.hpp"
#include "espalier/kernels/cuda/stopwatch.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "handles.hpp"

namespace espalier::cuda {
namespace {

constexpr double kRoundMicroseconds = 20000;
constexpr int kMaxRepetitions = 50;

/// Operands of backward in separate memory, after forward has computed o and lse.
class Backward {
 public:
  Backward(const AttentionDemand& demand, int64_t workspace_bytes)
      : workspace_bytes_(workspace_bytes),
        workspace_(static_cast<size_t>(workspace_bytes)),
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

  /// The inputs end with o, lse and dO; before them are q, k and v, or one tensor with all three.
  void Forward() {
    const auto o = inputs_.end() - 3;
    const std::vector<Tensor> inputs(inputs_.begin(), o), outputs(o, o + 2);
    KernelCall call{.inputs = inputs, .outputs = outputs, .attributes = &attributes_, .stream = stream_.Get()};
    call.workspace_bytes = PlannedWorkspace("attention", call);
    const DeviceMemory workspace(static_cast<size_t>(std::max<int64_t>(call.workspace_bytes, 1)));
    call.workspace = workspace.data();
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

}  // namespace

AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t workspace_bytes) {
  ForgetFallbacks();
  const Backward backward(demand, workspace_bytes);
  const double rounds = kRoundMicroseconds / std::max(backward.Microseconds(1), 1.0);
  const int repetitions = static_cast<int>(std::clamp(rounds, 1.0, double{kMaxRepetitions}));
  return {backward.Microseconds(repetitions), TakeFallbacks()};
}

}  // namespace espalier::cuda
