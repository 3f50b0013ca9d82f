// Rows of a table by position, added to the tokens; and their gradient.
#include <cstring>

#include "espalier/kernels/shapes.hpp"
#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Adds the rows of dy, summed over the batch, to the table's rows, within a range of columns that no other thread
/// touches.
template <typename T>
void AddRows(const PositionEmbeddingGradArgs& a, int64_t begin, int64_t end) {
  const int64_t batch = a.batch, length = a.length, width = a.width;
  for (int64_t s = 0; s < length; ++s) {
    const T* adjoint = a.dy.As<T>() + s * width;
    float* sums = a.dtable + CheckedRow(a.positions[s], a.table_rows) * width;
    ForLanes(begin, end, [=](int64_t c, auto lanes) {
      Floats sum{};
      for (int64_t b = 0; b < batch; ++b) sum += Load(adjoint + b * length * width + c, lanes);
      Store(sums + c, Load(sums + c, lanes) + sum, lanes);
    });
  }
}

}  // namespace

void PositionEmbedding(const PositionEmbeddingArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) {
    ForRows(a.rows, a.width, [&](int64_t r) {
      const T* x = a.x.As<T>() + r * a.width;
      const T* row = a.table.As<T>() + CheckedRow(a.positions[r % a.length], a.table_rows) * a.width;
      T* y = a.y.As<T>() + r * a.width;
      ForLanes(0, a.width,
               [=](int64_t c, auto lanes) { Store(y + c, Load(x + c, lanes) + Load(row + c, lanes), lanes); });
    });
  });
}

void PositionEmbeddingGrad(const PositionEmbeddingGradArgs& a) {
  if (!a.accumulate) std::memset(a.dtable, 0, static_cast<size_t>(a.table_rows * a.width) * sizeof(float));
  ForElementType(a.dy.dtype, [&]<typename T>(T) {
    ParallelRanges(a.width, kLanes, [&](int64_t begin, int64_t end) { AddRows<T>(a, begin, end); });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
