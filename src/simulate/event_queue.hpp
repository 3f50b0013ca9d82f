// The times at which kernels and transfers end, earliest first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace espalier::simulate {

/// An event is valid while its activity still has this version; an activity whose rate changes gets a new version and a
/// new event, and the old one is skipped.
struct EndEvent {
  double us = 0;
  uint32_t activity = 0;
  uint32_t version = 0;
};

/// A heap of four children per node: half the levels of a binary one, and siblings are in one cache line. The order of
/// events at equal times is unspecified; the clocks treat them as one moment.
class EventQueue {
 public:
  bool Empty() const { return heap_.empty(); }
  const EndEvent& Top() const { return heap_.front(); }

  void Push(const EndEvent& event) {
    size_t at = heap_.size();
    heap_.push_back(event);
    for (; at > 0 && event.us < heap_[Parent(at)].us; at = Parent(at)) heap_[at] = heap_[Parent(at)];
    heap_[at] = event;
  }

  void Pop() {
    const EndEvent last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    const size_t size = heap_.size();
    size_t at = 0;
    for (size_t first = 1; first < size; first = 4 * at + 1) {
      const size_t end = std::min(first + 4, size);
      size_t least = first;
      for (size_t child = first + 1; child < end; ++child)
        if (heap_[child].us < heap_[least].us) least = child;
      if (!(heap_[least].us < last.us)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = last;
  }

 private:
  static size_t Parent(size_t at) { return (at - 1) / 4; }

  std::vector<EndEvent> heap_;
};

}  // namespace espalier::simulate
