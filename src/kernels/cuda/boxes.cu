#include "boxes.hpp"
#include "espalier/kernels/cuda/launch.cuh"
#include "pack.cuh"

namespace espalier::cuda {
namespace {

/// A row is a run of the last dim, of units of 2, 4 or 16 bytes; some threads of x share one, and blocks of y; threads
/// of y take others.
template <typename Unit>
__global__ void CopyRows(BoxCopy copy, int64_t rows, const Unit* source, Unit* target, Unit fill) {
  CheckAligned(source, sizeof(Unit));
  CheckAligned(target, sizeof(Unit));
  const int last = copy.dims - 1;
  const int64_t width = copy.target[last], source_width = copy.source[last], shift = copy.shift[last];
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows;
       row += int64_t{gridDim.x} * blockDim.y) {
    int64_t rest = row, offset = 0, stride = source_width;
    bool inside = true;
    for (int d = last - 1; d >= 0; --d) {
      const int64_t at = rest % copy.target[d] + copy.shift[d];
      rest /= copy.target[d];
      inside = inside && at >= 0 && at < copy.source[d];
      offset += at * stride;
      stride *= copy.source[d];
    }
    for (int64_t c = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; c < width; c += int64_t{gridDim.y} * blockDim.x) {
      const int64_t at = c + shift;
      target[row * width + c] = inside && at >= 0 && at < source_width ? source[offset + at] : fill;
    }
  }
}

/// Joins dims that are whole in both with the next outer one: longer rows.
BoxCopy Joined(BoxCopy copy) {
  while (copy.dims > 1) {
    const int last = copy.dims - 1;
    if (copy.target[last] != copy.source[last] || copy.shift[last] != 0) break;
    for (int64_t* extents : {copy.target, copy.source, copy.shift}) extents[last - 1] *= copy.target[last];
    --copy.dims;
  }
  return copy;
}

template <typename Unit>
void LaunchUnits(BoxCopy copy, int64_t elements, const void* source, void* target, Unit fill, cudaStream_t stream) {
  const int last = copy.dims - 1;
  for (int64_t* extents : {copy.target, copy.source, copy.shift}) extents[last] /= elements;
  int64_t rows = 1;
  for (int d = 0; d < last; ++d) rows *= copy.target[d];
  unsigned columns = 1;
  while (columns < kThreads && columns < copy.target[last]) columns *= 2;
  const dim3 threads(columns, kThreads / columns);
  dim3 blocks = RowBlocks((rows + threads.y - 1) / threads.y);
  constexpr unsigned kMostBlocks = 8192;
  blocks.y = Clamped((copy.target[last] + columns - 1) / columns, kMostBlocks / blocks.x + 1);
  Launch(CopyRows<Unit>, blocks, threads, 0, stream, copy, rows, static_cast<const Unit*>(source),
         static_cast<Unit*>(target), fill);
}

}  // namespace

void LaunchCopyBox(const BoxCopy& box, int64_t element_bytes, const void* source, void* target, uint32_t fill,
                   cudaStream_t stream) {
  const BoxCopy copy = Joined(box);
  const int last = copy.dims - 1;
  const int64_t pack = 16 / element_bytes;
  for (int d = 0; d < copy.dims; ++d)
    if (copy.target[d] == 0) return;
  const bool packed = copy.target[last] % pack == 0 && copy.source[last] % pack == 0 && copy.shift[last] % pack == 0 &&
                      LieAtPacks(source, target);
  if (packed) {
    LaunchUnits<uint4>(copy, pack, source, target, {fill, fill, fill, fill}, stream);
  } else if (element_bytes == 4) {
    LaunchUnits<uint32_t>(copy, 1, source, target, fill, stream);
  } else {
    LaunchUnits<uint16_t>(copy, 1, source, target, static_cast<uint16_t>(fill), stream);
  }
}

}  // namespace espalier::cuda
