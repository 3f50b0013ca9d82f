#include "kernels/cuda/runtime/add_rows.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

// A position outside of the table ends the job.
template <typename T, int N>
__global__ void PositionEmbeddingKernel(PositionEmbeddingArgs a) {
  const T *x = a.x.As<T>(), *table = a.table.As<T>();
  T* y = a.y.As<T>();
  ForRows(a.rows, [&](int64_t r) {
    const int64_t position = a.positions[r % a.length];
    DEVICE_CHECK(position >= 0 && position < a.table_rows);
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * a.width + c, lanes), p = Load(table + position * a.width + c, lanes);
      Store(y + r * a.width + c, Each(lanes, [&](int k) { return v[k] + p[k]; }));
    });
  });
}

}  // namespace

void PositionEmbedding(const PositionEmbeddingArgs& a, const LaunchContext& context) {
  if (a.rows * a.width == 0) return;
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.table.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(PositionEmbeddingKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0, context.stream,
           a);
  });
}

void PositionEmbeddingGrad(const PositionEmbeddingGradArgs& a, const LaunchContext& context) {
  LaunchAddRows({.ids = a.positions,
                 .dy = a.dy,
                 .table = a.dtable,
                 .batch = a.batch,
                 .tokens = a.length,
                 .first_id = 0,
                 .rows = a.table_rows,
                 .width = a.width,
                 .accumulate = a.accumulate},
                context.stream);
}

}  // namespace espalier::cuda
