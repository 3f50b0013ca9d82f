// Rows of experts from tokens, and back.
#include <numeric>
#include <vector>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Dispatch(const DispatchArgs& a) {
  std::vector<int32_t> slots(static_cast<size_t>(a.tokens * a.per_token));
  std::iota(slots.begin(), slots.end(), 0);
  std::stable_sort(slots.begin(), slots.end(), [&](int32_t x, int32_t y) { return a.chosen[x] < a.chosen[y]; });
  for (size_t r = 0; r < slots.size(); ++r) {
    const int32_t slot = slots[r];
    a.places[slot] = static_cast<int32_t>(r);
    a.expert_of_row[r] = a.chosen[slot];
    a.row_weights[r] = a.weights[slot];
    for (int64_t c = 0; c < a.width; ++c)
      Set(a.rows, static_cast<int64_t>(r) * a.width + c, Get(a.x, slot / a.per_token * a.width + c));
  }
}

void Combine(const CombineArgs& a) {
  for (int64_t t = 0; t < a.tokens; ++t)
    for (int64_t c = 0; c < a.width; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < a.per_token; ++i) sum += Get(a.rows, a.places[t * a.per_token + i] * a.width + c);
      Set(a.y, t * a.width + c, sum);
    }
}

void DispatchGrad(const DispatchGradArgs& a) {
  Combine({a.drows, a.places, a.dx, a.tokens, a.per_token, a.width});
  for (int64_t slot = 0; slot < a.tokens * a.per_token; ++slot) a.dweights[slot] = a.drow_weights[a.places[slot]];
}

void CombineGrad(const CombineGradArgs& a) {
  for (int64_t slot = 0; slot < a.tokens * a.per_token; ++slot)
    for (int64_t c = 0; c < a.width; ++c)
      Set(a.drows, a.places[slot] * a.width + c, Get(a.dy, slot / a.per_token * a.width + c));
}

}  // namespace espalier::reference
