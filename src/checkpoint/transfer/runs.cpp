#include "espalier/checkpoint/runs.hpp"

namespace espalier {
namespace {

Shape StridesOf(const Box& box) {
  Shape strides(box.size(), 1);
  for (size_t d = box.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * box[d].Extent();
  return strides;
}

}  // namespace

Runs::Runs(const Box& from, const Box& to) : from_strides_(StridesOf(from)), to_strides_(StridesOf(to)) {
  const Box common = Intersect(from, to);
  done_ = IsEmpty(common);
  extents_ = ExtentsOf(common);
  for (size_t d = 0; d < common.size(); ++d) {
    from_at_ += (common[d].begin - from[d].begin) * from_strides_[d];
    to_at_ += (common[d].begin - to[d].begin) * to_strides_[d];
  }
  // The innermost dim is a run. It extends to the next outer dim while the dim is whole in both boxes.
  count_ = 1;
  while (!extents_.empty()) {
    const size_t d = extents_.size() - 1;
    count_ *= extents_.back();
    extents_.pop_back();
    if (common[d] != from[d] || common[d] != to[d]) break;
  }
  index_.assign(extents_.size(), 0);
}

void Runs::Next() {
  for (size_t d = extents_.size(); d-- > 0;) {
    from_at_ += from_strides_[d];
    to_at_ += to_strides_[d];
    if (++index_[d] < extents_[d]) return;
    from_at_ -= extents_[d] * from_strides_[d];
    to_at_ -= extents_[d] * to_strides_[d];
    index_[d] = 0;
  }
  done_ = true;
}

}  // namespace espalier
