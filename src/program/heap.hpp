// Free memory by best fit: of the holes that are large enough the smallest, of equal ones the lowest.
#pragma once

#include <algorithm>
#include <vector>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Memory above a base: holes, and the highest byte ever used. Sizes are rounded up to kAlignment. Programs have some
/// hundred holes at most, which sorted vectors hold best.
class Heap {
 public:
  explicit Heap(int64_t base) : top_(base), peak_(base) {}

  /// Offset of free memory of this size; past the top if no hole is large enough.
  int64_t Take(int64_t bytes) {
    CHECK(bytes >= 0 && bytes <= kMaxBytes && top_ <= kMaxBytes, "{} bytes of memory above {}", bytes, top_);
    bytes = Aligned(bytes);
    if (bytes == 0) return 0;
    const auto best = std::lower_bound(by_size_.begin(), by_size_.end(), BySize{bytes, 0});
    if (best == by_size_.end()) return Extend(bytes);
    const auto [size, offset] = *best;
    const auto hole = At(offset);
    if (size == bytes) {
      by_size_.erase(best);
      holes_.erase(hole);
    } else {
      *hole = {offset + bytes, size - bytes};
      Resize(best, {size - bytes, offset + bytes});
    }
    return offset;
  }

  /// Takes back what Take gave; holes that touch become one.
  void Give(int64_t offset, int64_t bytes) {
    bytes = Aligned(bytes);
    if (bytes == 0) return;
    const auto next = At(offset);
    CHECK(next == holes_.end() || next->offset > offset, "memory at {} is freed twice", offset);
    const bool after = next != holes_.end() && offset + bytes == next->offset;
    const bool before = next != holes_.begin() && std::prev(next)->offset + std::prev(next)->bytes == offset;
    if (before && after) {
      Hole& hole = *std::prev(next);
      by_size_.erase(Find(*next));
      const Hole whole = {hole.offset, hole.bytes + bytes + next->bytes};
      Resize(Find(hole), {whole.bytes, whole.offset});
      hole = whole;
      holes_.erase(next);
    } else if (before || after) {
      Hole& hole = before ? *std::prev(next) : *next;
      const Hole larger = {std::min(hole.offset, offset), hole.bytes + bytes};
      Resize(Find(hole), {larger.bytes, larger.offset});
      hole = larger;
    } else {
      holes_.insert(next, {offset, bytes});
      by_size_.insert(std::lower_bound(by_size_.begin(), by_size_.end(), BySize{bytes, offset}), {bytes, offset});
    }
  }

  int64_t peak() const { return peak_; }

 private:
  struct Hole {
    int64_t offset, bytes;
  };
  struct BySize {
    int64_t bytes, offset;
    auto operator<=>(const BySize&) const = default;
  };

  /// The first hole at or after `offset`.
  std::vector<Hole>::iterator At(int64_t offset) {
    return std::lower_bound(holes_.begin(), holes_.end(), offset,
                            [](const Hole& hole, int64_t at) { return hole.offset < at; });
  }
  std::vector<BySize>::iterator Find(const Hole& hole) {
    return std::lower_bound(by_size_.begin(), by_size_.end(), BySize{hole.bytes, hole.offset});
  }
  /// Replaces an entry and moves it to its place.
  void Resize(std::vector<BySize>::iterator entry, BySize now) {
    if (now < *entry) {
      const auto to = std::lower_bound(by_size_.begin(), entry, now);
      std::move_backward(to, entry, entry + 1);
      *to = now;
    } else {
      const auto to = std::lower_bound(entry + 1, by_size_.end(), now);
      std::move(entry + 1, to, entry);
      *(to - 1) = now;
    }
  }

  /// Past the top; a hole that touches the top is used up first.
  int64_t Extend(int64_t bytes) {
    int64_t offset = top_;
    if (!holes_.empty() && holes_.back().offset + holes_.back().bytes == top_) {
      offset = holes_.back().offset;
      by_size_.erase(Find(holes_.back()));
      holes_.pop_back();
    }
    top_ = offset + bytes;
    peak_ = std::max(peak_, top_);
    return offset;
  }

  std::vector<Hole> holes_;  // by offset
  std::vector<BySize> by_size_;
  int64_t top_, peak_;
};

}  // namespace espalier
