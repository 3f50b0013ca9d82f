// Strided copies and reductions on a GPU, any number of them in one launch. Each is split into units of equal width,
// contiguous on both sides; a block of threads processes one tile of units at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

inline constexpr int kMaxOuterDims = 6;
inline constexpr int64_t kTileUnits = 1024;

/// The units of a copy: `run` of them are contiguous, and the outer dims, innermost first, place the runs.
struct Units {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t count = 0;       ///< units in all
  int64_t first_tile = 0;  ///< first tile of this copy, counted over the whole launch
  int64_t run = 1;
  int64_t to_strides[kMaxOuterDims] = {};  ///< bytes
  int64_t from_strides[kMaxOuterDims] = {};
  uint32_t extents[kMaxOuterDims] = {};
  int dims = 0;
  int width = 1;  ///< bytes of a unit
};

struct CopyJob {
  Units units;
};

/// Reduces the buffers of all members into `to`. The own buffer is at `from`; the others have the layout of `to`. A
/// unit is one element, or 16 bytes.
struct ReduceJob {
  Units units;
  const std::byte* const* sources = nullptr;  ///< by member, on the device; the entry at `own` is not read
  int members = 0;
  int own = 0;
  Dtype dtype = Dtype::kF32;
  bool max = false;  ///< instead of the sum
};

/// Runs `jobs` (in device memory), which have `tiles` tiles in all.
void LaunchCopies(const CopyJob* jobs, int count, int64_t tiles, cudaStream_t stream);
void LaunchReductions(const ReduceJob* jobs, int count, int64_t tiles, cudaStream_t stream);

}  // namespace espalier::cuda
