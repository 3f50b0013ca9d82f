// Times of work on a GPU.
#pragma once

#include "espalier/kernels/cuda/cuda_call.hpp"

namespace espalier::cuda {

/// Two events on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    CUDA_CALL(cudaEventCreateWithFlags(&begin_, cudaEventDefault));
    CUDA_CALL(cudaEventCreateWithFlags(&end_, cudaEventDefault));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Mean time of `run` over `repetitions` consecutive runs; waits for the last.
  template <typename F>
  double Microseconds(int repetitions, F run) const {
    CUDA_CALL(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < repetitions; ++i) run();
    CUDA_CALL(cudaEventRecord(end_, stream_));
    CUDA_CALL(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1000.0 * static_cast<double>(milliseconds) / repetitions;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace espalier::cuda
