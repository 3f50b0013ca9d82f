#include "kernels/cuda/runtime/add_rows.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void EmbeddingKernel(EmbeddingArgs a) {
  const T* table = a.table.As<T>();
  T* y = a.y.As<T>();
  ForRows(a.tokens, [&](int64_t t) {
    const int64_t row = a.ids[t] - a.first_id;
    const bool here = row >= 0 && row < a.rows;
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      Store(y + t * a.width + c, here ? Load(table + row * a.width + c, lanes) : Floats<N>{});
    });
  });
}

}  // namespace

void Embedding(const EmbeddingArgs& a, const LaunchContext& context) {
  if (a.tokens * a.width == 0) return;
  ForPacks(a.table.dtype, a.width, AreAligned(a.table.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(EmbeddingKernel<T, lanes.value>, RowBlocks(a.tokens), RowThreads(a.width, lanes), 0, context.stream, a);
  });
}

void EmbeddingGrad(const EmbeddingGradArgs& a, const LaunchContext& context) {
  LaunchAddRows({.ids = a.ids,
                 .dy = a.dy,
                 .table = a.dtable,
                 .batch = 1,
                 .tokens = a.tokens,
                 .first_id = a.first_id,
                 .rows = a.rows,
                 .width = a.width,
                 .accumulate = a.accumulate},
                context.stream);
}

}  // namespace espalier::cuda
