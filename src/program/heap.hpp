// Free memory by best fit: of the holes that are large enough the smallest, of equal ones the lowest.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Memory above a base: holes, and the highest byte ever used. Sizes are rounded up to kAlignment.
class Heap {
 public:
  explicit Heap(int64_t base) : top_(base), peak_(base) {}

  /// Offset of free memory of this size; past the top if no hole is large enough.
  int64_t Take(int64_t bytes) {
    CHECK(bytes >= 0 && bytes <= kMaxBytes && top_ <= kMaxBytes, "{} bytes of memory above {}", bytes, top_);
    bytes = Aligned(bytes);
    if (bytes == 0) return 0;
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return Extend(bytes);
    const auto [size, offset] = *best;
    Fill(holes_.find(offset));
    if (size > bytes) Open(offset + bytes, size - bytes);
    return offset;
  }

  /// Takes back what Take gave; holes that touch become one.
  void Give(int64_t offset, int64_t bytes) {
    bytes = Aligned(bytes);
    if (bytes == 0) return;
    const auto next = holes_.lower_bound(offset);
    CHECK(next == holes_.end() || next->first > offset, "memory at {} is freed twice", offset);
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        Fill(before);
      }
    }
    if (next != holes_.end() && offset + bytes == next->first) {
      bytes += next->second;
      Fill(next);
    }
    Open(offset, bytes);
  }

  int64_t peak() const { return peak_; }

 private:
  using Holes = std::map<int64_t, int64_t>;  // offset -> bytes

  void Open(int64_t offset, int64_t bytes) {
    holes_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void Fill(Holes::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    holes_.erase(hole);
  }

  /// Past the top; a hole that touches the top is used up first.
  int64_t Extend(int64_t bytes) {
    int64_t offset = top_;
    if (!holes_.empty() && holes_.rbegin()->first + holes_.rbegin()->second == top_) {
      offset = holes_.rbegin()->first;
      Fill(std::prev(holes_.end()));
    }
    top_ = offset + bytes;
    peak_ = std::max(peak_, top_);
    return offset;
  }

  Holes holes_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // bytes, offset
  int64_t top_, peak_;
};

}  // namespace espalier
