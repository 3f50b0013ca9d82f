// The intersection of two boxes as runs of bytes that are contiguous in both, to copy part of a piece that is read in
// chunks.
#pragma once

#include <cstdint>

#include "espalier/graph/type.hpp"

namespace espalier {

/// Iterates over the runs of the intersection of `from` and `to` (dense row-major boxes of one tensor, fp32) in the
/// order of `from`.
class Runs {
 public:
  Runs(const Box& from, const Box& to);

  bool Done() const { return done_; }
  void Next();
  /// Bytes of every run.
  int64_t Bytes() const { return bytes_; }
  /// The start of the current run, in bytes from the start of each box.
  int64_t From() const { return from_at_; }
  int64_t To() const { return to_at_; }

 private:
  Shape from_strides_, to_strides_;  ///< bytes, of the outer dims
  Shape extents_;                    ///< of the outer dims of the intersection
  Shape index_;
  int64_t bytes_ = 0, from_at_ = 0, to_at_ = 0;
  bool done_ = false;
};

}  // namespace espalier
