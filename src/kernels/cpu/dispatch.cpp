// Rows of experts from tokens, and back.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Places of the copies for experts of this rank: a counting sort by expert, which keeps the order of tokens.
void PlaceRows(const DispatchArgs& a) {
  const int64_t copies = a.tokens * a.per_token;
  const auto expert_of = [&](int64_t i) { return a.chosen[i] - a.first_expert; };
  const auto is_here = [&](int64_t expert) { return expert >= 0 && expert < a.experts; };
  std::vector<int64_t> next(static_cast<size_t>(a.experts) + 1, -a.first_row);
  for (size_t e = 1; e < next.size(); ++e) next[e] = 0;
  for (int64_t i = 0; i < copies; ++i)
    if (is_here(expert_of(i))) ++next[static_cast<size_t>(expert_of(i)) + 1];
  for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  const int64_t filled = std::clamp<int64_t>(next.back(), 0, a.count);
  std::fill(a.expert_of_row + filled, a.expert_of_row + a.count, kNoExpert);
  std::fill(a.row_weights + filled, a.row_weights + a.count, 0.0f);
  for (int64_t i = 0; i < copies; ++i) {
    const int64_t expert = expert_of(i), row = is_here(expert) ? next[static_cast<size_t>(expert)]++ : -1;
    const bool fits = row >= 0 && row < a.count;
    a.places[i] = fits ? static_cast<int32_t>(row) : -1;
    if (!fits) continue;
    a.expert_of_row[row] = static_cast<int32_t>(expert);
    a.row_weights[row] = a.weights[i];
  }
}

/// Copies the row of each token to the rows of its experts.
void CopyRows(const Array& tokens, const int32_t* places, const Array& rows, int64_t count, int64_t per_token,
              int64_t width) {
  const int64_t bytes = width * SizeOf(rows.dtype);
  ForRows(count, width * per_token, [&](int64_t t) {
    for (int64_t i = 0; i < per_token; ++i)
      if (const int32_t row = places[t * per_token + i]; row >= 0)
        std::memcpy(rows.As<char>() + row * bytes, tokens.As<char>() + t * bytes, static_cast<size_t>(bytes));
  });
}

}  // namespace

void Dispatch(const DispatchArgs& a) {
  PlaceRows(a);
  CopyRows(a.x, a.places, a.rows, a.tokens, a.per_token, a.width);
}

// Sums are fp32. Where a token has no row and y stays, nothing is touched.
void Combine(const CombineArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T* rows = a.rows.As<T>();
    T* y = a.y.As<T>();
    ForRows(a.tokens, a.width * a.per_token, [&](int64_t t) {
      const int32_t *places = a.places + t * a.per_token, *end = places + a.per_token;
      if (a.accumulate && std::all_of(places, end, [](int32_t row) { return row < 0; })) return;
      ForLanes(0, a.width, [&](int64_t c, auto lanes) {
        Floats sum{};
        if (a.accumulate) sum = Load(y + t * a.width + c, lanes);
        for (const int32_t* row = places; row < end; ++row)
          if (*row >= 0) sum += Load(rows + *row * a.width + c, lanes);
        Store(y + t * a.width + c, sum, lanes);
      });
    });
  });
}

void DispatchGrad(const DispatchGradArgs& a) {
  Combine({a.drows, a.places, a.dx, a.tokens, a.per_token, a.width, a.accumulate});
  ParallelRanges(a.tokens * a.per_token, kWorthAThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (a.places[i] >= 0)
        a.dweights[i] = a.drow_weights[a.places[i]];
      else if (!a.accumulate)
        a.dweights[i] = 0;
  });
}

void CombineGrad(const CombineGradArgs& a) { CopyRows(a.dy, a.places, a.drows, a.tokens, a.per_token, a.width); }

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
