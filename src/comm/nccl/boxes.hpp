// Box copies and joins on a GPU: any number of them in one launch. Each is cut into units of equal width that lie side
// by side on both sides, and blocks take tiles of so many units.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

inline constexpr int kMostOuterDims = 6;
inline constexpr int64_t kTileUnits = 1024;

/// The units of a box: `run` of them lie side by side, and runs lie as the dims around them say, innermost first.
struct Units {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t count = 0;       ///< of all units
  int64_t first_tile = 0;  ///< of the launch
  int64_t run = 1;
  int64_t to_strides[kMostOuterDims] = {};  ///< bytes
  int64_t from_strides[kMostOuterDims] = {};
  uint32_t extents[kMostOuterDims] = {};
  int dims = 0;
  int width = 1;  ///< bytes of a unit
};

struct CopyJob {
  Units units;
};

/// Every member's piece into one: the own one lies at `from`, the others lie like `to`. Units are of one element, or of
/// 16 bytes.
struct JoinJob {
  Units units;
  const std::byte* const* sources = nullptr;  ///< by member, on the device; the own one is not looked at
  int members = 0;
  int own = 0;
  Dtype dtype = Dtype::kF32;
  bool largest = false;  ///< instead of the sum
};

/// Runs `jobs` (on the device) of `tiles` tiles in all.
void LaunchCopies(const CopyJob* jobs, int count, int64_t tiles, cudaStream_t stream);
void LaunchJoins(const JoinJob* jobs, int count, int64_t tiles, cudaStream_t stream);

}  // namespace espalier::cuda
