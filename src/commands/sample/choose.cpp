#include "commands/sample/choose.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace espalier {
namespace {

/// The likeliest tokens, likeliest first; equal ones by id. If no token is excluded, all of them, by id.
std::vector<int32_t> Candidates(std::span<const float> logits, const Sampling& sampling) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (sampling.top_k == 0 && sampling.top_p >= 1) return ids;
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const size_t kept = sampling.top_k == 0 ? ids.size() : std::min(ids.size(), static_cast<size_t>(sampling.top_k));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(), likelier);
  ids.resize(kept);
  return ids;
}

}  // namespace

int32_t Choose(std::span<const float> logits, const Sampling& sampling, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  const std::vector<int32_t> ids = Candidates(logits, sampling);
  std::vector<double> sums;  // sums of exp((logit - best) / temperature) over the candidates up to each
  double sum = 0;
  for (int32_t id : ids)
    sums.push_back(sum += std::exp((double(logits[static_cast<size_t>(id)]) - double(*best)) / sampling.temperature));
  if (sampling.top_p < 1) {
    const auto last = std::lower_bound(sums.begin(), sums.end(), sampling.top_p * sum);
    sums.resize(std::min(sums.size(), static_cast<size_t>(last - sums.begin()) + 1));
    sum = sums.back();
  }
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  return ids[static_cast<size_t>(std::min<std::ptrdiff_t>(chosen - sums.begin(), std::ssize(sums) - 1))];
}

}  // namespace espalier
