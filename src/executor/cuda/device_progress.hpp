// The progress of the device, in words of pinned memory that the device writes in stream order, also inside graphs. The
// host's own count of issued instructions does not show that a GPU waits for a peer.
#pragma once

#include <array>

#include "espalier/comm/progress.hpp"
#include "handles.hpp"

namespace espalier::cuda {

class DeviceProgress {
 public:
  /// Every update costs a copy, so the compute lane gives a sign of life only after this many instructions; a step may
  /// take minutes.
  static constexpr int kSignOfLife = 64;

  /// `most`: number of instructions of the longest lane.
  explicit DeviceProgress(int most);

  /// Issued at the beginning of a step: resets all lanes to 0.
  void Begin(cudaStream_t stream) const;
  /// Issued on the lane's stream: its first `count` instructions are finished.
  void Finished(Lane lane, int count, cudaStream_t stream) const;

  /// Finished instructions of a lane, by its word.
  int Done(Lane lane) const;
  /// Copies the current words to `progress`, as progress of step `run`.
  void Show(Progress& progress, int run) const;

 private:
  std::byte* Word(Lane lane) const { return words_.data() + static_cast<size_t>(lane) * sizeof(int32_t); }
  void Copy(std::byte* words, size_t first, size_t count, cudaStream_t stream) const;

  PinnedMemory words_;
  DeviceMemory numbers_;  ///< source of the copies: kLaneCount - 1 zeros, then 0, 1, ...
};

}  // namespace espalier::cuda
