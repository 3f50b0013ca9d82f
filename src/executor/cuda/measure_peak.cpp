#include "measure_peak.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <vector>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/cuda/fill_with_numbers.hpp"

namespace espalier::cuda {
namespace {

constexpr int64_t kSmallestSide = 256, kLargestSide = 8192, kWorkspaceBytes = int64_t{32} << 20;
constexpr double kLongEnoughMs = 2, kMeasuringMs = 25;
constexpr double kClockMs = 0.0005;  ///< resolution of events

/// c = a b of square matrices in memory of their own.
class SquareMatmul {
 public:
  SquareMatmul(int64_t side, Dtype dtype, cudaStream_t stream)
      : bytes_(side * side * SizeOf(dtype)),
        memory_(static_cast<size_t>(BytesNeeded(side, dtype))),
        a_{memory_.data(), dtype, {1, side, side}, {0, 0, 0}},
        b_{memory_.data() + bytes_, dtype, {side, side}, {0, 0}},
        c_{memory_.data() + 2 * bytes_, dtype, {1, side, side}, {0, 0, 0}},
        inputs_{a_, b_},
        stream_(stream) {
    attributes_.texts["spec"] = "bsk,nk->bsn";
    FillWithNumbers(memory_.data(), 2 * bytes_, dtype);
    PrepareCudaKernel("matmul", Call());
    Milliseconds();  // the first one loads the kernel
  }

  static int64_t BytesNeeded(int64_t side, Dtype dtype) { return 3 * side * side * SizeOf(dtype) + kWorkspaceBytes; }

  double Milliseconds() const {
    CUDA_CALL(cudaEventRecord(began_.Get(), stream_));
    kernel_(Call());
    CUDA_CALL(cudaEventRecord(ended_.Get(), stream_));
    CUDA_CALL(cudaEventSynchronize(ended_.Get()));
    float ms = 0;
    CUDA_CALL(cudaEventElapsedTime(&ms, began_.Get(), ended_.Get()));
    return static_cast<double>(ms);
  }

 private:
  KernelCall Call() const {
    return {.inputs = inputs_,
            .outputs = {&c_, 1},
            .workspace = memory_.data() + 3 * bytes_,
            .workspace_bytes = kWorkspaceBytes,
            .attributes = &attributes_,
            .stream = stream_};
  }

  const int64_t bytes_;
  const DeviceMemory memory_;
  const Tensor a_, b_, c_;
  const std::vector<Tensor> inputs_;
  const cudaStream_t stream_;
  Attributes attributes_;
  const Kernel kernel_ = FindCudaKernel("matmul");
  const Event began_{Timing::kOn}, ended_{Timing::kOn};
};

bool Fits(int64_t side, Dtype dtype) {
  size_t free = 0, total = 0;
  CUDA_CALL(cudaMemGetInfo(&free, &total));
  return SquareMatmul::BytesNeeded(side, dtype) <= static_cast<int64_t>(free / 4);
}

/// The smallest size that takes long enough to time, or the largest that fits: rates rise up to some size.
int64_t ChooseSide(Dtype dtype, cudaStream_t stream) {
  int64_t side = kSmallestSide;
  while (side < kLargestSide && Fits(2 * side, dtype) &&
         SquareMatmul(side, dtype, stream).Milliseconds() < kLongEnoughMs)
    side *= 2;
  return side;
}

PeakRate Measure(Dtype compute, cudaStream_t stream) {
  if (!Fits(kSmallestSide, compute)) return {0, "too little free memory to measure the GPU's peak"};
  const int64_t side = ChooseSide(compute, stream);
  const SquareMatmul matmul(side, compute, stream);
  double fastest_ms = std::numeric_limits<double>::infinity(), spent_ms = 0;
  for (int round = 0; round < 2 || spent_ms < kMeasuringMs; ++round) {
    const double ms = std::max(matmul.Milliseconds(), kClockMs);
    fastest_ms = std::min(fastest_ms, ms);
    spent_ms += ms;
  }
  const auto n = static_cast<double>(side);
  const double flops = 2 * n * n * n / (fastest_ms * 1e-3);
  return {flops, fmt::format("measured at the start: {0} x {0} GEMMs in {1} reach {2:.4g} TFLOP/s", side, Name(compute),
                             flops * 1e-12)};
}

}  // namespace

PeakRate MeasureGpuPeak(Dtype compute, cudaStream_t stream) {
  try {
    return Measure(compute, stream);
  } catch (const std::exception& error) {
    cudaGetLastError();  // otherwise the next launch would report it
    return {0, fmt::format("the GPU's peak could not be measured: {}", error.what())};
  }
}

}  // namespace espalier::cuda
