// Waits between lanes: an event after every instruction that another lane waits for.
#pragma once

#include <map>
#include <utility>

#include "handles.hpp"

namespace espalier::cuda {

class LaneEvents {
 public:
  explicit LaneEvents(const Program& program) {
    for (const Instruction& instruction : program.instructions)
      for (const Wait& wait : instruction.waits)
        if (wait.lane != instruction.lane) events_.try_emplace({wait.lane, wait.count}, Timing::kOff);
  }

  /// The first `count` instructions of `lane` have been issued on `stream`.
  void Issued(Lane lane, int count, cudaStream_t stream) const {
    if (const auto event = events_.find({lane, count}); event != events_.end())
      CUDA_CALL(cudaEventRecord(event->second.Get(), stream));
  }
  /// Makes `stream` wait; the awaited instruction must have been issued.
  void Await(const Wait& wait, cudaStream_t stream) const {
    CUDA_CALL(cudaStreamWaitEvent(stream, events_.at({wait.lane, wait.count}).Get(), 0));
  }
  bool Has(Lane lane, int count) const { return events_.count({lane, count}) > 0; }

 private:
  std::map<std::pair<Lane, int>, Event> events_;
};

}  // namespace espalier::cuda
