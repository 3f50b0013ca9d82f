// The intersection of two boxes as runs of elements that are contiguous in both. It copies part of a stored box that is
// read in chunks.
#pragma once

#include <cstdint>

#include "espalier/graph/type.hpp"

namespace espalier {

/// Iterates over the runs of the intersection of `from` and `to` (dense row-major boxes of one tensor) in the order of
/// `from`.
class Runs {
 public:
  Runs(const Box& from, const Box& to);

  bool Done() const { return done_; }
  void Next();
  /// Elements of every run.
  int64_t Count() const { return count_; }
  /// The first element of the current run, counted from the start of each box.
  int64_t From() const { return from_at_; }
  int64_t To() const { return to_at_; }

 private:
  Shape from_strides_, to_strides_;  ///< strides in elements, for the outer dims
  Shape extents_;                    ///< outer dims of the intersection
  Shape index_;
  int64_t count_ = 0, from_at_ = 0, to_at_ = 0;
  bool done_ = false;
};

}  // namespace espalier
