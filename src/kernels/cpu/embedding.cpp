// Rows of a table by token id, and their gradient.
#include <cstring>

#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Adds the rows of dy to the table's rows, within a range of columns that no other thread touches. Tokens come in
/// order, so each element's sum has one order on any number of threads.
template <typename T>
void AddRows(const EmbeddingGradArgs& a, int64_t begin, int64_t end) {
  const T* dy = a.dy.As<T>();
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t row = a.ids[t] - a.first_id;
    if (row < 0 || row >= a.rows) continue;
    float* sums = a.dtable + row * a.width;
    ForLanes(begin, end, [&](int64_t c, auto lanes) {
      Store(sums + c, Load(sums + c, lanes) + Load(dy + t * a.width + c, lanes), lanes);
    });
  }
}

}  // namespace

void Embedding(const EmbeddingArgs& a) {
  const int64_t bytes = a.width * SizeOf(a.table.dtype);
  ForRows(a.tokens, a.width, [&](int64_t t) {
    const int64_t row = a.ids[t] - a.first_id;
    char* y = a.y.As<char>() + t * bytes;
    if (row >= 0 && row < a.rows) {
      std::memcpy(y, a.table.As<char>() + row * bytes, static_cast<size_t>(bytes));
    } else {
      std::memset(y, 0, static_cast<size_t>(bytes));
    }
  });
}

void EmbeddingGrad(const EmbeddingGradArgs& a) {
  if (!a.accumulate) {
    ParallelRanges(a.rows * a.width, kWorthAThread, [&](int64_t begin, int64_t end) {
      std::memset(a.dtable + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    });
  }
  ForElementType(a.dy.dtype, [&]<typename T>(T) {
    ParallelRanges(a.width, kLanes, [&](int64_t begin, int64_t end) { AddRows<T>(a, begin, end); });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
