// Copies to and from the memory of the host, on a device whose copies a thread makes: one thread per direction, for
// the length of a step.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "espalier/executor/executor.hpp"

namespace espalier {

class CopyLanes {
 public:
  /// The copies of a program, in order; they must outlive it.
  explicit CopyLanes(const std::vector<HostCopy>& copies);
  ~CopyLanes();

  /// Starts a step: each copy, after its waits, by `make` on the thread of its lane, which is then raised. An exception
  /// fails the step. Both must outlive Finish().
  void Start(LaneCounts& lanes, const std::function<void(const HostCopy&)>& make);
  /// Waits until the threads have ended. May be called again.
  void Finish();

 private:
  ByLane<std::vector<const HostCopy*>> copies_;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
