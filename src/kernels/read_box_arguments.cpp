// Arguments of the kernels that copy boxes.
#include "espalier/kernels/shapes.hpp"
#include "kernels/argument_reader.hpp"
#include "kernels/read_arguments.hpp"

namespace espalier {
namespace {

/// CHECKs that the box of `inner` is inside the box of `outer`.
void CheckInside(const Tensor& inner, const Tensor& outer) {
  if (Volume(inner.shape) == 0) return;
  for (size_t d = 0; d < inner.shape.size(); ++d) {
    const int64_t begin = StartOf(inner, d) - StartOf(outer, d);
    CHECK(begin >= 0 && begin + inner.shape[d] <= outer.shape[d], "{} at {} lies outside {} at {}",
          ToString(inner.shape), ToString(inner.start), ToString(outer.shape), ToString(outer.start));
  }
}

BoxArgs BoxOf(const Reader& r) {
  const Tensor &x = r.In(0), &y = r.Out(0);
  const size_t dims = x.shape.size();
  CHECK(y.shape.size() == dims && dims <= kMaxDims, "a box {} of {}", ToString(y.shape), ToString(x.shape));
  BoxArgs box{.dims = std::max(1, static_cast<int>(dims)),
              .target = {1},
              .source = {1},
              .shift = {0},
              .x = x.data,
              .y = y.data,
              .element_bytes = SizeOf(y.dtype),
              .fill = 0};
  for (size_t d = 0; d < dims; ++d) {
    box.target[d] = y.shape[d];
    box.source[d] = x.shape[d];
    box.shift[d] = StartOf(y, d) - StartOf(x, d);
  }
  return box;
}

/// First element in `whole` of chunk `chunk` of its rows, which begins at attribute `first`.
int64_t FirstElementOf(const Reader& r, const Tensor& chunk, const Tensor& whole) {
  int64_t width = 1;
  for (size_t d = 2; d < whole.shape.size(); ++d) width *= whole.shape[d];
  const int64_t first = r.IntegerOr("first", 0) * width;
  CHECK(chunk.dtype == whole.dtype && first >= 0 && first + Volume(chunk.shape) <= Volume(whole.shape),
        "rows {} from {} of {}", ToString(chunk.shape), r.IntegerOr("first", 0), ToString(whole.shape));
  return first;
}
BoxArgs Run(int64_t elements, int64_t source, int64_t shift, const void* x, void* y, Dtype dtype) {
  return {.dims = 1,
          .target = {elements},
          .source = {source},
          .shift = {shift},
          .x = x,
          .y = y,
          .element_bytes = SizeOf(dtype),
          .fill = 0};
}

/// The bits of minus infinity, twice for bf16; for integers the smallest one.
uint32_t LowestOf(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 0xff80ff80u : dtype == Dtype::kF32 ? 0xff800000u : 0x80000000u;
}

}  // namespace

template <>
SliceArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const SliceArgs args{BoxOf(r)};
  CheckInside(r.Out(0), r.In(0));
  return args;
}

template <>
PadArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  PadArgs args{BoxOf(r)};
  CheckInside(r.In(0), r.Out(0));
  if (r.NumberOr("max", 0) != 0) args.fill = LowestOf(r.Out(0).dtype);
  return args;
}

template <>
TakeRowsArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &x = r.In(0), &y = r.Out(0);
  return {Run(Volume(y.shape), Volume(x.shape), FirstElementOf(r, y, x), x.data, y.data, y.dtype)};
}

template <>
PutRowsArgs ReadArguments(const KernelCall& call) {
  const Reader r(call);
  const Tensor &x = r.In(0), &y = r.Out(0);
  const int64_t elements = Volume(x.shape), first = FirstElementOf(r, x, y);
  return {Run(elements, elements, 0, x.data, static_cast<char*>(y.data) + first * SizeOf(y.dtype), y.dtype)};
}

}  // namespace espalier
