// What the routers of all backends share. Included by nvcc.
#pragma once

#include <cstdint>

#include "kernels/host_device.hpp"

namespace espalier {

/// Added to the sum of chosen sigmoid scores, which may be 0 (DeepSeek-V3's code).
inline constexpr float kLeastScoreSum = 1e-20f;

/// Whether logit x of one expert goes before logit y of an expert with a higher number. A NaN is below all others.
ESPALIER_HOST_DEVICE inline bool IsBefore(float x, float y) { return x >= y || y != y; }

/// The `count` experts with the highest logits, highest first; of equal ones the lower number.
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

}  // namespace espalier
