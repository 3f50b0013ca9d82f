#include "time_attention.hpp"

#include <algorithm>
#include <memory>

#include "espalier/device_memory/workspace.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/kernels/cuda/fill_with_numbers.hpp"
#include "espalier/ops/unjoin.hpp"
#include "handles.hpp"

namespace espalier::cuda {
namespace {

constexpr double kRoundMs = 20;
constexpr int kMostRepetitions = 50;

/// Operands of backward in memory of their own, after forward has made o and lse.
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
    Milliseconds(1);  // the first one loads the kernel
  }

  /// Of one call, in a row of `repetitions`.
  double Milliseconds(int repetitions) const {
    CUDA_CALL(cudaEventRecord(began_.Get(), stream_.Get()));
    for (int i = 0; i < repetitions; ++i) kernel_(Call());
    CUDA_CALL(cudaEventRecord(ended_.Get(), stream_.Get()));
    CUDA_CALL(cudaEventSynchronize(ended_.Get()));
    float ms = 0;
    CUDA_CALL(cudaEventElapsedTime(&ms, began_.Get(), ended_.Get()));
    return static_cast<double>(ms) / repetitions;
  }

 private:
  std::vector<Tensor> Place(std::vector<Tensor> tensors) {
    for (Tensor& x : tensors) {
      memory_.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(Volume(x.shape) * SizeOf(x.dtype))));
      x.data = memory_.back()->data();
    }
    return tensors;
  }

  /// The inputs end with o, lse and dO; before them are q, k and v, or these three joined.
  void Forward() {
    const auto o = inputs_.end() - 3;
    const std::vector<Tensor> inputs(inputs_.begin(), o), outputs(o, o + 2);
    Op op;
    op.kind = OpKind::kAttention;
    op.attributes = attributes_;
    LocalOp local{op, {}, {}, inputs[0].dtype};
    for (const Tensor& x : inputs) local.inputs.push_back(x.shape), local.input_dtypes.push_back(x.dtype);
    for (const Tensor& x : outputs) local.outputs.push_back(x.shape), local.output_dtypes.push_back(x.dtype);
    Unjoin(local);
    const int64_t bytes = CudaWorkspaceFormula(OpKind::kAttention)(local);
    const DeviceMemory workspace(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    const KernelCall call{.inputs = inputs,
                          .outputs = outputs,
                          .workspace = workspace.data(),
                          .workspace_bytes = bytes,
                          .attributes = &attributes_,
                          .stream = stream_.Get()};
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
  const Event began_{Timing::kOn}, ended_{Timing::kOn};
};

}  // namespace

AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t workspace_bytes, bool deterministic) {
  ConfigureCudaKernels(deterministic, "");
  ForgetFallbacks();
  const Backward backward(demand, workspace_bytes);
  const int repetitions =
      static_cast<int>(std::clamp(kRoundMs / std::max(backward.Milliseconds(1), 1e-3), 1.0, double{kMostRepetitions}));
  return {1000 * backward.Milliseconds(repetitions), TakeFallbacks()};
}

}  // namespace espalier::cuda
