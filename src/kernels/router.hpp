// Arithmetic that the routers of all backends share. Included by nvcc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/host_device.hpp"

namespace espalier {

/// Added to the sum of chosen sigmoid scores, which may be 0 (DeepSeek-V3's code).
inline constexpr float kMinScoreSum = 1e-20f;

/// Whether logit x of one expert goes before logit y of an expert with a higher number. A NaN is below all others.
ESPALIER_HOST_DEVICE inline bool IsBefore(float x, float y) { return x >= y || y != y; }

/// The `count` experts with the highest logits, highest first; among equal ones, the lower number first.
template <typename Logit>
void ChooseExperts(Logit logit, int64_t experts, int64_t count, int32_t* chosen) {
  int64_t found = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (found == count && (count == 0 || IsBefore(logit(chosen[count - 1]), logit(e)))) continue;
    int64_t at = found < count ? found++ : count - 1;
    for (; at > 0 && !IsBefore(logit(chosen[at - 1]), logit(e)); --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<int32_t>(e);
  }
}

/// The i-th expert of a token whose position chooses (experts.routing = "balanced").
ESPALIER_HOST_DEVICE inline int32_t BalancedExpert(int32_t position, int64_t i, int64_t experts, int64_t per_token) {
  return static_cast<int32_t>((position * per_token + i) % experts);
}

/// Lowers the values of all experts but those in the `top_groups` groups whose `best` highest values, one or two, have
/// the largest sums; among equal groups, the first. A group has adjacent experts.
template <typename T>
void KeepTopGroups(T* values, int64_t experts, int64_t groups, int64_t top_groups, int64_t best) {
  const int64_t each = experts / groups;
  const bool two = each > 1 && best == 2;
  const auto rank = [&](int64_t group) {
    T first = -std::numeric_limits<T>::infinity(), second = two ? first : 0;
    for (int64_t e = group * each; e < (group + 1) * each; ++e) {
      if (values[e] > first) {
        if (two) second = first;
        first = values[e];
      } else if (two && values[e] > second) {
        second = values[e];
      }
    }
    return static_cast<float>(first + second);
  };
  std::vector<int32_t> kept(static_cast<size_t>(top_groups));
  ChooseExperts(rank, groups, top_groups, kept.data());
  for (int64_t g = 0; g < groups; ++g)
    if (std::find(kept.begin(), kept.end(), g) == kept.end())
      std::fill_n(values + g * each, each, -std::numeric_limits<T>::infinity());
}

}  // namespace espalier
