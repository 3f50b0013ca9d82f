#include "comm/lowering/combine.hpp"
#include "copy_kernels.hpp"
#include "espalier/kernels/cuda/launch.cuh"

namespace espalier::cuda {
namespace {

constexpr int kThreads = 256;
/// A few waves of a large GPU: the copies of a lane leave room for kernels that run at the same time.
constexpr int64_t kMaxBlocks = 1024;

template <int kBytes>
struct alignas(kBytes) Word {
  unsigned char bytes[kBytes];
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

/// The job of a tile: the last one that begins at or before it.
template <typename Job>
__device__ const Job& FindJob(const Job* jobs, int count, int64_t tile) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (jobs[middle].units.first_tile <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return jobs[low];
}

struct Offsets {
  int64_t to, from;
};

/// Offsets of a unit, in bytes. The host has checked that runs can be counted in 32 bits.
__device__ Offsets OffsetsOf(const Units& units, int64_t unit) {
  if (units.dims == 0) return {unit * units.width, unit * units.width};
  const int64_t run = unit / units.run, within = (unit - run * units.run) * units.width;
  Offsets offsets{within, within};
  uint32_t rest = static_cast<uint32_t>(run);
  for (int d = 0; d < units.dims; ++d) {
    const uint32_t next = rest / units.extents[d], at = rest - next * units.extents[d];
    offsets.to += at * units.to_strides[d];
    offsets.from += at * units.from_strides[d];
    rest = next;
  }
  return offsets;
}

/// Calls f(offsets) for this thread's units of a tile.
template <typename F>
__device__ void ForEachUnit(const Units& units, int64_t tile, F f) {
  const int64_t first = (tile - units.first_tile) * kTileUnits;
  const int64_t end = units.count < first + kTileUnits ? units.count : first + kTileUnits;
  for (int64_t unit = first + threadIdx.x; unit < end; unit += blockDim.x) f(OffsetsOf(units, unit));
}

template <typename Unit>
__device__ const Unit& UnitAt(const std::byte* place) {
  CheckAligned(place, alignof(Unit));
  return *reinterpret_cast<const Unit*>(place);
}

template <typename Unit>
__device__ void Put(std::byte* place, const Unit& unit) {
  CheckAligned(place, alignof(Unit));
  *reinterpret_cast<Unit*>(place) = unit;
}

template <typename T>
__device__ void CopyTile(const Units& units, int64_t tile) {
  ForEachUnit(units, tile, [&](Offsets at) { Put(units.to + at.to, UnitAt<T>(units.from + at.from)); });
}

__global__ void Copies(const CopyJob* jobs, int count, int64_t tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Units& units = FindJob(jobs, count, tile).units;
    switch (units.width) {
      case 16:
        CopyTile<Word<16>>(units, tile);
        break;
      case 8:
        CopyTile<Word<8>>(units, tile);
        break;
      case 4:
        CopyTile<Word<4>>(units, tile);
        break;
      default:
        CopyTile<Word<2>>(units, tile);
    }
  }
}

/// One pass over all members' units, left to right. `to` may be one of the sources.
template <typename T, int kCount, typename Combine>
__device__ void ReduceTile(const ReduceJob& job, int64_t tile, Combine combine) {
  using Unit = Pack<T, kCount>;
  ForEachUnit(job.units, tile, [&](Offsets at) {
    decltype(Widen(T{})) sums[kCount];
    for (int m = 0; m < job.members; ++m) {
      const std::byte* source = m == job.own ? job.units.from + at.from : job.sources[m] + at.to;
      const Unit unit = UnitAt<Unit>(source);
      for (int i = 0; i < kCount; ++i)
        sums[i] = m == 0 ? Widen(unit.values[i]) : combine(sums[i], Widen(unit.values[i]));
    }
    Unit result;
    for (int i = 0; i < kCount; ++i) Narrow(sums[i], result.values[i]);
    Put(job.units.to + at.to, result);
  });
}

template <typename T, int kCount>
__device__ void ReduceTileOf(const ReduceJob& job, int64_t tile) {
  if (job.max)
    ReduceTile<T, kCount>(job, tile, Max{});
  else
    ReduceTile<T, kCount>(job, tile, Add{});
}

template <typename T>
__device__ void ReduceTileOf(const ReduceJob& job, int64_t tile) {
  if (job.units.width == 16)
    ReduceTileOf<T, 16 / static_cast<int>(sizeof(T))>(job, tile);
  else
    ReduceTileOf<T, 1>(job, tile);
}

__global__ void Reductions(const ReduceJob* jobs, int count, int64_t tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const ReduceJob& job = FindJob(jobs, count, tile);
    switch (job.dtype) {
      case Dtype::kF32:
        ReduceTileOf<float>(job, tile);
        break;
      case Dtype::kBf16:
        ReduceTileOf<Bf16>(job, tile);
        break;
      case Dtype::kI32:
        ReduceTileOf<int32_t>(job, tile);
        break;
      case Dtype::kF8E4M3:
      case Dtype::kF8E5M2:
      case Dtype::kF8E8M0:
        break;  // never reduced
    }
  }
}

dim3 BlocksFor(int64_t tiles) { return dim3(static_cast<unsigned>(tiles < kMaxBlocks ? tiles : kMaxBlocks)); }

}  // namespace

void LaunchCopies(const CopyJob* jobs, int count, int64_t tiles, cudaStream_t stream) {
  if (tiles > 0) Launch(Copies, BlocksFor(tiles), dim3(kThreads), 0, stream, jobs, count, tiles);
}

void LaunchReductions(const ReduceJob* jobs, int count, int64_t tiles, cudaStream_t stream) {
  if (tiles > 0) Launch(Reductions, BlocksFor(tiles), dim3(kThreads), 0, stream, jobs, count, tiles);
}

}  // namespace espalier::cuda
