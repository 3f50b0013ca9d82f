#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

/// A row is a run of the last dim, in units of 2, 4 or 16 bytes. Threads in x and blocks in y share a row; threads in y
/// take other rows.
template <typename Unit>
__global__ void CopyRows(BoxArgs box, int64_t rows, Unit fill) {
  const auto* source = static_cast<const Unit*>(box.x);
  auto* target = static_cast<Unit*>(box.y);
  CheckAligned(source, sizeof(Unit));
  CheckAligned(target, sizeof(Unit));
  const int last = box.dims - 1;
  const int64_t width = box.target[last], source_width = box.source[last], shift = box.shift[last];
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows;
       row += int64_t{gridDim.x} * blockDim.y) {
    int64_t rest = row, offset = 0, stride = source_width;
    bool inside = true;
    for (int d = last - 1; d >= 0; --d) {
      const int64_t at = rest % box.target[d] + box.shift[d];
      rest /= box.target[d];
      inside = inside && at >= 0 && at < box.source[d];
      offset += at * stride;
      stride *= box.source[d];
    }
    for (int64_t c = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; c < width; c += int64_t{gridDim.y} * blockDim.x) {
      const int64_t at = c + shift;
      target[row * width + c] = inside && at >= 0 && at < source_width ? source[offset + at] : fill;
    }
  }
}

/// Merges dims that are whole in both boxes into the next outer dim: longer rows.
BoxArgs Merged(BoxArgs box) {
  while (box.dims > 1) {
    const int last = box.dims - 1;
    if (box.target[last] != box.source[last] || box.shift[last] != 0) break;
    for (int64_t* extents : {box.target, box.source, box.shift}) extents[last - 1] *= box.target[last];
    --box.dims;
  }
  return box;
}

template <typename Unit>
void LaunchUnits(BoxArgs box, int64_t elements_per_unit, Unit fill, cudaStream_t stream) {
  const int last = box.dims - 1;
  for (int64_t* extents : {box.target, box.source, box.shift}) extents[last] /= elements_per_unit;
  int64_t rows = 1;
  for (int d = 0; d < last; ++d) rows *= box.target[d];
  unsigned columns = 1;
  while (columns < kThreads && columns < box.target[last]) columns *= 2;
  const dim3 threads(columns, kThreads / columns);
  dim3 blocks = RowBlocks((rows + threads.y - 1) / threads.y);
  constexpr unsigned kMaxBlocks = 8192;
  blocks.y = Clamped((box.target[last] + columns - 1) / columns, kMaxBlocks / blocks.x + 1);
  Launch(CopyRows<Unit>, blocks, threads, 0, stream, box, rows, fill);
}

void CopyBox(const BoxArgs& args, cudaStream_t stream) {
  const BoxArgs box = Merged(args);
  const int last = box.dims - 1;
  const int64_t pack = 16 / box.element_bytes;
  for (int d = 0; d < box.dims; ++d)
    if (box.target[d] == 0) return;
  const bool packed = box.target[last] % pack == 0 && box.source[last] % pack == 0 && box.shift[last] % pack == 0 &&
                      AreAligned(box.x, box.y);
  if (packed) {
    LaunchUnits<uint4>(box, pack, {box.fill, box.fill, box.fill, box.fill}, stream);
  } else if (box.element_bytes == 4) {
    LaunchUnits<uint32_t>(box, 1, box.fill, stream);
  } else {
    LaunchUnits<uint16_t>(box, 1, static_cast<uint16_t>(box.fill), stream);
  }
}

}  // namespace

void Slice(const SliceArgs& a, const LaunchContext& context) { CopyBox(a, context.stream); }
void Pad(const PadArgs& a, const LaunchContext& context) { CopyBox(a, context.stream); }
void TakeRows(const TakeRowsArgs& a, const LaunchContext& context) { CopyBox(a, context.stream); }
void PutRows(const PutRowsArgs& a, const LaunchContext& context) { CopyBox(a, context.stream); }

}  // namespace espalier::cuda
