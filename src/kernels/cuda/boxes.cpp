#include "boxes.hpp"

#include "kernels.hpp"

namespace espalier::cuda {
namespace {

BoxCopy CopyOf(const Tensor& source, const Tensor& target) {
  const size_t dims = source.shape.size();
  CHECK(target.shape.size() == dims && dims <= kMostDims, "a box {} of {}", ToString(source.shape),
        ToString(target.shape));
  BoxCopy copy{.dims = 1, .target = {1}, .source = {1}, .shift = {0}};
  for (size_t d = 0; d < dims; ++d) {
    copy.target[d] = target.shape[d];
    copy.source[d] = source.shape[d];
    copy.shift[d] = StartOf(target, d) - StartOf(source, d);
  }
  copy.dims = std::max(1, static_cast<int>(dims));
  return copy;
}

/// CHECKs that `box` lies inside `whole`.
void CheckInside(const Tensor& box, const Tensor& whole) {
  if (Volume(box.shape) == 0) return;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    const int64_t begin = StartOf(box, d) - StartOf(whole, d);
    CHECK(begin >= 0 && begin + box.shape[d] <= whole.shape[d], "{} at {} lies outside {} at {}", ToString(box.shape),
          ToString(box.start), ToString(whole.shape), ToString(whole.start));
  }
}

/// Minus infinity, twice in bf16; of integers the least.
uint32_t LowestOf(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 0xff80ff80u : dtype == Dtype::kF32 ? 0xff800000u : 0x80000000u;
}

}  // namespace

// x -> the box of x that y names by its start and extents
void Slice(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  const BoxCopy copy = CopyOf(x, y);
  CheckInside(y, x);
  LaunchCopyBox(copy, SizeOf(x.dtype), x.data, y.data, 0, StreamOf(call));
}

// x -> a larger box with x in its place, else 0, or with `max` the lowest value there is
void Pad(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  const BoxCopy copy = CopyOf(x, y);
  CheckInside(x, y);
  const uint32_t fill = call.attributes->NumberOr("max", 0) != 0 ? LowestOf(y.dtype) : 0;
  LaunchCopyBox(copy, SizeOf(y.dtype), x.data, y.data, fill, StreamOf(call));
}

}  // namespace espalier::cuda
