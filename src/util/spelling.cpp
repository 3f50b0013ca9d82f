#include "espalier/util/spelling.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace espalier {

bool IsNear(int distance, std::string_view name) {
  return distance <= std::max(2, static_cast<int>(name.size()) / 3) && distance < static_cast<int>(name.size());
}

int EditDistance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> d((a.size() + 1) * columns);
  auto at = [&](size_t i, size_t j) -> int& { return d[i * columns + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::string Nearest(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 64;  // longer ones are no misspellings and would cost time
  constexpr size_t kBeginning = 3;
  if (name.size() > kLongestName) return "";
  std::string nearest;
  int least = 0;
  for (const std::string& candidate : candidates) {
    const bool begins = name.size() >= kBeginning && std::string_view(candidate).starts_with(name);
    const int distance = begins ? 1 : EditDistance(name, candidate);
    if (!IsNear(distance, name) || (!nearest.empty() && distance >= least)) continue;
    nearest = candidate;
    least = distance;
  }
  return nearest;
}

std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest);
}

}  // namespace espalier
