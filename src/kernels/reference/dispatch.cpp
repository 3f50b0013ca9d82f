// Rows of experts from tokens, and back.
#include <numeric>
#include <vector>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Dispatch(const DispatchArgs& a) {
  const auto expert_of = [&](int32_t slot) { return a.chosen[slot] - a.first_expert; };
  std::vector<int32_t> slots(static_cast<size_t>(a.tokens * a.per_token));
  std::iota(slots.begin(), slots.end(), 0);
  std::fill(a.places, a.places + slots.size(), -1);
  std::fill(a.expert_of_row, a.expert_of_row + a.count, kNoExpert);
  std::fill(a.row_weights, a.row_weights + a.count, 0.0f);
  std::erase_if(slots, [&](int32_t slot) { return expert_of(slot) < 0 || expert_of(slot) >= a.experts; });
  std::stable_sort(slots.begin(), slots.end(), [&](int32_t x, int32_t y) { return a.chosen[x] < a.chosen[y]; });
  for (int64_t r = 0; r < a.count && a.first_row + r < static_cast<int64_t>(slots.size()); ++r) {
    const int32_t slot = slots[static_cast<size_t>(a.first_row + r)];
    a.places[slot] = static_cast<int32_t>(r);
    a.expert_of_row[r] = static_cast<int32_t>(expert_of(slot));
    a.row_weights[r] = a.weights[slot];
    for (int64_t c = 0; c < a.width; ++c) Set(a.rows, r * a.width + c, Get(a.x, slot / a.per_token * a.width + c));
  }
}

void Combine(const CombineArgs& a) {
  for (int64_t t = 0; t < a.tokens; ++t)
    for (int64_t c = 0; c < a.width; ++c) {
      double sum = a.accumulate ? Get(a.y, t * a.width + c) : 0;
      for (int64_t i = 0; i < a.per_token; ++i)
        if (const int32_t row = a.places[t * a.per_token + i]; row >= 0) sum += Get(a.rows, row * a.width + c);
      Set(a.y, t * a.width + c, sum);
    }
}

void DispatchGrad(const DispatchGradArgs& a) {
  Combine({a.drows, a.places, a.dx, a.tokens, a.per_token, a.width, a.accumulate});
  for (int64_t slot = 0; slot < a.tokens * a.per_token; ++slot)
    if (a.places[slot] >= 0)
      a.dweights[slot] = a.drow_weights[a.places[slot]];
    else if (!a.accumulate)
      a.dweights[slot] = 0;
}

void CombineGrad(const CombineGradArgs& a) {
  for (int64_t slot = 0; slot < a.tokens * a.per_token; ++slot)
    for (int64_t c = 0; a.places[slot] >= 0 && c < a.width; ++c)
      Set(a.drows, a.places[slot] * a.width + c, Get(a.dy, slot / a.per_token * a.width + c));
}

}  // namespace espalier::reference
