// Copying part of a piece that arrives in chunks: the common part of two boxes as runs of bytes that are contiguous in
// both.
#pragma once

#include <cstdint>

#include "espalier/graph/type.hpp"

namespace espalier {

/// Walks the runs of the common part of `from` and `to` (two dense row-major pieces of one tensor, fp32) in the order
/// of `from`.
class Runs {
 public:
  Runs(const Box& from, const Box& to);

  bool Done() const { return done_; }
  void Next();
  /// Bytes of every run.
  int64_t Bytes() const { return bytes_; }
  /// Where the present run begins, in bytes from the start of each piece.
  int64_t From() const { return from_at_; }
  int64_t To() const { return to_at_; }

 private:
  Shape from_strides_, to_strides_;  ///< bytes, of the outer dims
  Shape extents_;                    ///< of the outer dims of the common part
  Shape index_;
  int64_t bytes_ = 0, from_at_ = 0, to_at_ = 0;
  bool done_ = false;
};

}  // namespace espalier
