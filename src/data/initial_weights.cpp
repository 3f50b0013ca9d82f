#include "espalier/data/initial_weights.hpp"

#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {

void FillNormal(float* out, int64_t seed, std::string_view name, const Shape& shape, const Box& box, double std) {
  CHECK(shape.size() == box.size(), "{}: a box of {} dims of a tensor of {}", name, box.size(), shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    CHECK(0 <= box[d].begin && box[d].begin <= box[d].end && box[d].end <= shape[d], "{}: box outside dim {}", name, d);
  }
  if (IsEmpty(box)) return;
  const uint64_t key = StreamKey(seed, name);
  // Dims from `split` on are whole, so one run covers the box's part of dim split - 1 and all dims after it.
  size_t split = shape.size();
  int64_t inner = 1;
  while (split > 0 && box[split - 1].Extent() == shape[split - 1]) inner *= shape[--split];
  const size_t outer_dims = split > 0 ? split - 1 : 0;
  const int64_t run = split > 0 ? box[split - 1].Extent() * inner : inner;

  Shape index;
  for (const Range& r : box) index.push_back(r.begin);
  while (true) {
    int64_t first = 0;
    for (size_t d = 0; d < split; ++d) first = first * shape[d] + index[d];
    FillNormalRun(out, key, first * inner, run, std);
    out += run;
    size_t d = outer_dims;
    while (d > 0 && ++index[d - 1] == box[d - 1].end) {
      index[d - 1] = box[d - 1].begin;
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace espalier
