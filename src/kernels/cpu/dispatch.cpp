// Rows of experts from tokens, and back.
#include <cstring>
#include <vector>

#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Places of all copies: a counting sort by expert, which keeps the order of tokens.
void PlaceRows(const DispatchArgs& a) {
  const int64_t copies = a.tokens * a.per_token;
  int32_t experts = 0;
  for (int64_t i = 0; i < copies; ++i) experts = std::max(experts, a.chosen[i] + 1);
  std::vector<int32_t> next(static_cast<size_t>(experts) + 1);
  for (int64_t i = 0; i < copies; ++i) ++next[static_cast<size_t>(a.chosen[i]) + 1];
  for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  for (int64_t i = 0; i < copies; ++i) {
    const int32_t row = next[static_cast<size_t>(a.chosen[i])]++;
    a.places[i] = row;
    a.expert_of_row[row] = a.chosen[i];
    a.row_weights[row] = a.weights[i];
  }
}

/// Copies the row of each token to the rows of its experts.
void CopyRows(const Array& tokens, const int32_t* places, const Array& rows, int64_t count, int64_t per_token,
              int64_t width) {
  const int64_t bytes = width * SizeOf(rows.dtype);
  ForRows(count, width * per_token, [&](int64_t t) {
    for (int64_t i = 0; i < per_token; ++i)
      std::memcpy(rows.As<char>() + places[t * per_token + i] * bytes, tokens.As<char>() + t * bytes,
                  static_cast<size_t>(bytes));
  });
}

}  // namespace

void Dispatch(const DispatchArgs& a) {
  PlaceRows(a);
  CopyRows(a.x, a.places, a.rows, a.tokens, a.per_token, a.width);
}

// Sums are fp32.
void Combine(const CombineArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T* rows = a.rows.As<T>();
    T* y = a.y.As<T>();
    ForRows(a.tokens, a.width * a.per_token, [&](int64_t t) {
      ForLanes(0, a.width, [&](int64_t c, auto lanes) {
        Floats sum{};
        for (int64_t i = 0; i < a.per_token; ++i)
          sum += Load(rows + a.places[t * a.per_token + i] * a.width + c, lanes);
        Store(y + t * a.width + c, sum, lanes);
      });
    });
  });
}

void DispatchGrad(const DispatchGradArgs& a) {
  Combine({a.drows, a.places, a.dx, a.tokens, a.per_token, a.width});
  ParallelRanges(a.tokens * a.per_token, kWorthAThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a.dweights[i] = a.drow_weights[a.places[i]];
  });
}

void CombineGrad(const CombineGradArgs& a) { CopyRows(a.dy, a.places, a.drows, a.tokens, a.per_token, a.width); }

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
