// The time of every instruction of one step: a timing event on its stream before it and one after it.
#pragma once

#include <vector>

#include "handles.hpp"

namespace espalier::cuda {

class InstructionClock {
 public:
  explicit InstructionClock(size_t instructions) {
    for (size_t i = 0; i < instructions; ++i) pairs_.emplace_back();
  }

  /// Issued on the stream of instruction `index`: after its waits, and after itself.
  void Begins(int index, cudaStream_t stream) const { CUDA_CALL(cudaEventRecord(Of(index).before.Get(), stream)); }
  void Ends(int index, cudaStream_t stream) const { CUDA_CALL(cudaEventRecord(Of(index).after.Get(), stream)); }

  /// Milliseconds by instruction, once the step is over.
  std::vector<double> Read() const {
    std::vector<double> all;
    for (const Pair& pair : pairs_) {
      float ms = 0;
      CUDA_CALL(cudaEventElapsedTime(&ms, pair.before.Get(), pair.after.Get()));
      all.push_back(ms);
    }
    return all;
  }

 private:
  struct Pair {
    Event before{Timing::kOn}, after{Timing::kOn};
  };
  const Pair& Of(int index) const { return pairs_[index]; }

  std::vector<Pair> pairs_;
};

}  // namespace espalier::cuda
