// A vector added to every row, and the sum over rows that is its adjoint.
#include "column_sums.hpp"

namespace espalier::cpu {

// x T[b,s,n], bias T[n] -> T[b,s,n]
void AddBias(const KernelCall& call) {
  const int64_t rows = RowsOf(call.inputs[0]), width = ColumnsOf(call.inputs[0]);
  ForElementType(call.outputs[0].dtype, [&]<typename T>(T) {
    const T *x = call.inputs[0].As<T>(), *bias = call.inputs[1].As<T>();
    T* y = call.outputs[0].As<T>();
    ParallelRanges(rows, RowGrain(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        ForLanes(0, width, [=](int64_t c, auto lanes) {
          Store(y + r * width + c, Load(x + r * width + c, lanes) + Load(bias + c, lanes), lanes);
        });
    });
  });
}

// dy T[b,s,n] -> f32[n]
void BiasGrad(const KernelCall& call) {
  const Tensor& dy = call.inputs[0];
  const int64_t rows = RowsOf(dy), width = ColumnsOf(dy);
  float* sums = call.outputs[0].As<float>();
  ForElementType(dy.dtype, [&]<typename T>(T) {
    ForColumns(rows, width, [&](int64_t c, auto lanes) {
      const T* column = dy.As<T>() + c;
      const F16 sum = SumOverRows(rows, [=](int64_t r) { return Load(column + r * width, lanes); });
      PutColumns(sums + c, sum, call.accumulate, lanes);
    });
  });
}

}  // namespace espalier::cpu
