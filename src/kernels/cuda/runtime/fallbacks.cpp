#include "espalier/kernels/cuda/fallbacks.hpp"

#include <mutex>
#include <set>
#include <utility>

namespace espalier::cuda {
namespace {

struct Fallbacks {
  std::mutex mutex;
  std::set<std::string> noted;
  std::vector<std::string> fresh;
};

Fallbacks& Noted() {
  static Fallbacks fallbacks;
  return fallbacks;
}

}  // namespace

void NoteFallback(const std::string& text) {
  Fallbacks& fallbacks = Noted();
  const std::lock_guard lock(fallbacks.mutex);
  if (fallbacks.noted.insert(text).second) fallbacks.fresh.push_back(text);
}

std::vector<std::string> TakeFallbacks() {
  Fallbacks& fallbacks = Noted();
  const std::lock_guard lock(fallbacks.mutex);
  return std::exchange(fallbacks.fresh, {});
}

SeparateFallbacks::SeparateFallbacks() { Swap(); }
SeparateFallbacks::~SeparateFallbacks() { Swap(); }

void SeparateFallbacks::Swap() {
  Fallbacks& fallbacks = Noted();
  const std::lock_guard lock(fallbacks.mutex);
  noted_.swap(fallbacks.noted);
  fresh_.swap(fallbacks.fresh);
}

}  // namespace espalier::cuda
