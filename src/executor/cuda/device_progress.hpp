// How far the device is, in words of pinned memory that it writes itself, in stream order, inside graphs too: what the
// host has issued says nothing of a GPU that waits for a peer.
#pragma once

#include <array>

#include "espalier/comm/progress.hpp"
#include "handles.hpp"

namespace espalier::cuda {

class DeviceProgress {
 public:
  /// A word costs a copy, so compute tells after every so many instructions that it lives: a step may take minutes.
  static constexpr int kSignOfLife = 64;

  /// `most`: the longest lane's instructions.
  explicit DeviceProgress(int most);

  /// Issued at the beginning of a step: nothing is finished.
  void Begin(cudaStream_t stream) const;
  /// Issued on the lane's stream: its first `count` instructions are finished.
  void Finished(Lane lane, int count, cudaStream_t stream) const;

  /// Finished instructions of a lane, by its word.
  int Done(Lane lane) const;
  /// Shows others what the words say now, as the `run`-th step.
  void Show(Progress& progress, int run) const;

 private:
  std::byte* Word(Lane lane) const { return words_.data() + static_cast<size_t>(lane) * sizeof(int32_t); }
  void Copy(std::byte* words, size_t first, size_t count, cudaStream_t stream) const;

  PinnedMemory words_;
  DeviceMemory numbers_;  ///< to copy from: a 0 for every lane but one, then 0, 1, ...
};

}  // namespace espalier::cuda
