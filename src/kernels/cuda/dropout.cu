#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/random_words.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void DropoutKernel(DropoutArgs a) {
  const DropoutMask& mask = a.mask;
  const uint32_t step = mask.Step();
  ForRows(a.rows, [&](int64_t r) {
    const T* x = a.x.As<T>() + r * a.width;
    T* y = a.y.As<T>() + r * a.width;
    const WordStream stream{mask.key, mask.tokens[r], mask.first, a.width};
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + c, lanes);
      const auto words = RandomWords(stream, step, c, lanes);
      Store(y + c, Each(lanes, [&](int k) { return words.values[k] < mask.threshold ? 0.0f : v[k] * mask.scale; }));
    });
  });
}

}  // namespace

void Dropout(const DropoutArgs& a, const LaunchContext& context) {
  if (a.rows * a.width == 0) return;
  ForPacks(a.y.dtype, a.width, AreAligned(a.x.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(DropoutKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0, context.stream, a);
  });
}

}  // namespace espalier::cuda
