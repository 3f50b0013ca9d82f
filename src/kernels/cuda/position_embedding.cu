#include "pack.cuh"
#include "position_embedding.hpp"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void PositionEmbedding(const T* x, const int32_t* positions, int64_t length, const T* table,
                                  int64_t table_rows, int64_t rows, int64_t width, T* y) {
  ForRows(rows, [&](int64_t r) {
    const int64_t position = positions[r % length];
    DEVICE_CHECK(position >= 0 && position < table_rows);
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * width + c, lanes), p = Load(table + position * width + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return v[k] + p[k]; }));
    });
  });
}

}  // namespace

void LaunchPositionEmbedding(Dtype dtype, const void* x, const int32_t* positions, int64_t length, const void* table,
                             int64_t table_rows, int64_t rows, int64_t width, void* y, cudaStream_t stream) {
  if (rows * width == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, table, y), [&](auto lanes) {
      Launch(PositionEmbedding<T, lanes.value>, RowBlocks(rows), RowThreads(width, lanes), 0, stream,
             static_cast<const T*>(x), positions, length, static_cast<const T*>(table), table_rows, rows, width,
             static_cast<T*>(y));
    });
  });
}

}  // namespace espalier::cuda
