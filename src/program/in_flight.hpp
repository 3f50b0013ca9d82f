// State of a planner that does not grow with the program: the microbatches in flight, and lives that end soon.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace espalier {

/// A queue by the instruction after which its elements end.
template <typename T>
class Ends {
 public:
  void Add(int after, const T& what) {
    heap_.push_back({after, what});
    std::ranges::push_heap(heap_, std::ranges::greater(), &End::after);
  }
  /// One that ends after instruction `i`, the first of those to come.
  std::optional<T> Take(int i) {
    if (heap_.empty() || heap_.front().after != i) return std::nullopt;
    std::ranges::pop_heap(heap_, std::ranges::greater(), &End::after);
    const T what = heap_.back().what;
    heap_.pop_back();
    return what;
  }

 private:
  struct End {
    int after;
    T what;
  };
  std::vector<End> heap_;
};

/// Buffers of a microbatch have a slot from its first instruction on, until the last of them dies. So their number
/// grows with the microbatches in flight.
class Slots {
 public:
  explicit Slots(int microbatches) : of_(static_cast<size_t>(microbatches), -1) {}
  int Of(int microbatch) const { return of_[microbatch]; }
  int Take(int microbatch) {
    int& slot = of_[microbatch] = count_;
    if (free_.empty()) return ++count_, slot;
    slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Give(int microbatch) { free_.push_back(std::exchange(of_[microbatch], -1)); }

 private:
  std::vector<int> of_;  // by microbatch
  std::vector<int> free_;
  int count_ = 0;
};

}  // namespace espalier
