// Operations that run slower than possible because a library or the driver refused the faster way.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace espalier::cuda {

/// Notes `text`, unless it was noted before.
void NoteFallback(const std::string& text);

/// The notes since the last call, in order.
std::vector<std::string> TakeFallbacks();

/// While it lives, notes are kept apart from those before and after: a measurement has its own.
class SeparateFallbacks {
 public:
  SeparateFallbacks();
  ~SeparateFallbacks();
  SeparateFallbacks(const SeparateFallbacks&) = delete;
  SeparateFallbacks& operator=(const SeparateFallbacks&) = delete;

 private:
  void Swap();

  std::set<std::string> noted_;
  std::vector<std::string> fresh_;
};

}  // namespace espalier::cuda
