// Free memory by best fit: of the holes that are large enough the smallest, of equal ones the lowest.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Memory above a base: holes, and the highest byte ever used. Sizes are rounded up to kAlignment. Holes may be as many
/// as layers, so each step takes time that grows with their logarithm.
class Heap {
 public:
  explicit Heap(int64_t base) : top_(base), peak_(base) {}

  /// Offset of free memory of this size; past the top if no hole is large enough.
  int64_t Take(int64_t bytes) {
    CHECK(bytes >= 0 && bytes <= kMaxBytes && top_ <= kMaxBytes, "{} bytes of memory above {}", bytes, top_);
    bytes = Aligned(bytes);
    if (bytes == 0) return 0;
    const auto best = by_size_.lower_bound(BySize{bytes, 0});
    if (best == by_size_.end()) return Extend(bytes);
    const auto [size, offset] = *best;
    const auto hole = holes_.find(offset);
    if (size == bytes) {
      by_size_.erase(best);
      holes_.erase(hole);
    } else {
      Replace(hole, offset + bytes, size - bytes);
    }
    return offset;
  }

  /// Takes back what Take gave; holes that touch become one.
  void Give(int64_t offset, int64_t bytes) {
    bytes = Aligned(bytes);
    if (bytes == 0) return;
    const auto next = holes_.lower_bound(offset);
    CHECK(next == holes_.end() || next->first > offset, "memory at {} is freed twice", offset);
    const bool after = next != holes_.end() && offset + bytes == next->first;
    const bool before = next != holes_.begin() && EndOf(*std::prev(next)) == offset;
    if (before && after) {
      const auto hole = std::prev(next);
      const int64_t whole = hole->second + bytes + next->second;
      by_size_.erase({next->second, next->first});
      holes_.erase(next);
      Replace(hole, hole->first, whole);
    } else if (before) {
      const auto hole = std::prev(next);
      Replace(hole, hole->first, hole->second + bytes);
    } else if (after) {
      Replace(next, offset, bytes + next->second);
    } else {
      holes_.emplace_hint(next, offset, bytes);
      by_size_.insert({bytes, offset});
    }
  }

  int64_t peak() const { return peak_; }

 private:
  using Holes = std::map<int64_t, int64_t>;  // offset -> bytes
  struct BySize {
    int64_t bytes, offset;
    auto operator<=>(const BySize&) const = default;
  };

  static int64_t EndOf(const Holes::value_type& hole) { return hole.first + hole.second; }

  /// Gives a hole other bounds, between those of its neighbours.
  void Replace(Holes::iterator hole, int64_t offset, int64_t bytes) {
    auto size = by_size_.extract({hole->second, hole->first});
    size.value() = {bytes, offset};
    by_size_.insert(std::move(size));
    const auto next = std::next(hole);
    auto moved = holes_.extract(hole);
    moved.key() = offset;
    moved.mapped() = bytes;
    holes_.insert(next, std::move(moved));
  }

  /// Past the top; a hole that touches the top is used up first.
  int64_t Extend(int64_t bytes) {
    int64_t offset = top_;
    if (!holes_.empty() && EndOf(*holes_.rbegin()) == top_) {
      const auto last = std::prev(holes_.end());
      offset = last->first;
      by_size_.erase({last->second, last->first});
      holes_.erase(last);
    }
    top_ = offset + bytes;
    peak_ = std::max(peak_, top_);
    return offset;
  }

  Holes holes_;
  std::set<BySize> by_size_;
  int64_t top_, peak_;
};

}  // namespace espalier
