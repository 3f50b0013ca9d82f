// Times of every instruction of one step: a timing event on its stream before it and one after it.
#pragma once

#include <vector>

#include "espalier/timeline/timeline.hpp"
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

  /// The spans by instruction, once the step is over, from the event `began` on. An instruction is ready and begins
  /// when its stream reaches it.
  std::vector<Span> Read(const Event& began) const {
    std::vector<Span> spans;
    for (const Pair& pair : pairs_) {
      const double ready_us = MicrosecondsBetween(began, pair.before);
      spans.push_back({static_cast<int>(spans.size()), ready_us, ready_us, MicrosecondsBetween(began, pair.after)});
    }
    return spans;
  }

 private:
  struct Pair {
    Event before{Timing::kOn}, after{Timing::kOn};
  };
  /// Events have a resolution of half a microsecond, and a float has 24 bits: 1 us in a step of 16 s.
  static double MicrosecondsBetween(const Event& from, const Event& to) {
    float ms = 0;
    CUDA_CALL(cudaEventElapsedTime(&ms, from.Get(), to.Get()));
    return double{ms} * 1e3;
  }
  const Pair& Of(int index) const { return pairs_[index]; }

  std::vector<Pair> pairs_;
};

}  // namespace espalier::cuda
