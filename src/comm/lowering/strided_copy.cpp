#include "comm/lowering/strided_copy.hpp"

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

Shape DenseStrides(const Shape& extents, int64_t element_bytes) {
  Shape strides(extents.size());
  int64_t stride = element_bytes;
  for (size_t d = extents.size(); d-- > 0; stride *= extents[d]) strides[d] = stride;
  return strides;
}

}  // namespace

bool View::IsDense() const { return MakeCopy(*this, *this).outer.empty(); }

View WholeOf(const Tensor& tensor) {
  return {tensor.As<std::byte>(), tensor.dtype, tensor.shape, DenseStrides(tensor.shape, SizeOf(tensor.dtype))};
}

View ViewOf(const Tensor& tensor, const Box& box) {
  CHECK(box.size() == tensor.shape.size(), "a box of {} dims of a tensor of {}", box.size(), tensor.shape.size());
  View view = WholeOf(tensor);
  view.extents = ExtentsOf(box);
  if (IsEmpty(box)) return view;
  for (size_t d = 0; d < box.size(); ++d) {
    const int64_t first = box[d].begin - tensor.start[d];
    CHECK(first >= 0 && first + box[d].Extent() <= tensor.shape[d], "box [{}, {}) of dim {} is not in [{}, {})",
          box[d].begin, box[d].end, d, tensor.start[d], tensor.start[d] + tensor.shape[d]);
    view.base += first * view.strides[d];
  }
  return view;
}

View PackedAt(std::byte* base, const View& view) {
  return {base, view.dtype, view.extents, DenseStrides(view.extents, SizeOf(view.dtype))};
}

StridedCopy MakeCopy(const View& to, const View& from) {
  CHECK(to.extents == from.extents && to.dtype == from.dtype, "copy of {} to {}", ToString(from.extents),
        ToString(to.extents));
  std::vector<StridedCopy::Dim> dims = {{SizeOf(to.dtype), 1, 1}};
  for (size_t d = to.extents.size(); d-- > 0;) {
    if (to.extents[d] == 1) continue;
    StridedCopy::Dim& inner = dims.back();
    if (inner.extent * inner.to_stride == to.strides[d] && inner.extent * inner.from_stride == from.strides[d])
      inner.extent *= to.extents[d];
    else
      dims.push_back({to.extents[d], to.strides[d], from.strides[d]});
  }
  return {to.base, from.base, dims.front().extent, {dims.begin() + 1, dims.end()}};
}

}  // namespace espalier
