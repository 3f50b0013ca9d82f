// A vector added to every row, and its gradient, the sum over rows.
#include "kernels/cpu/runtime/column_sums.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

void AddBias(const AddBiasArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T *x = a.x.As<T>(), *bias = a.bias.As<T>();
    T* y = a.y.As<T>();
    ForRows(a.rows, a.width, [=, width = a.width](int64_t r) {
      ForLanes(0, width, [=](int64_t c, auto lanes) {
        Store(y + r * width + c, Load(x + r * width + c, lanes) + Load(bias + c, lanes), lanes);
      });
    });
  });
}

void BiasGrad(const BiasGradArgs& a) {
  ForElementType(a.dy.dtype, [&]<typename T>(T) {
    ForColumns(a.rows, a.width, [&](int64_t c, auto lanes) {
      const T* column = a.dy.As<T>() + c;
      const Floats sum =
          SumOverRows(a.rows, [=, width = a.width](int64_t r) { return Load(column + r * width, lanes); });
      PutColumns(a.dbias + c, sum, a.accumulate, lanes);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
