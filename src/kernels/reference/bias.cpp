// A vector added to every row, and the sum over rows that is its adjoint.
#include "access.hpp"

namespace espalier::reference {

// x T[b,s,n], bias T[n] -> T[b,s,n]
void AddBias(const KernelCall& call) {
  const int64_t rows = RowsOf(call.inputs[0]), width = ColumnsOf(call.inputs[0]);
  for (int64_t i = 0; i < rows * width; ++i)
    Set(call.outputs[0], i, Get(call.inputs[0], i) + Get(call.inputs[1], i % width));
}

// dy T[b,s,n] -> f32[n]
void BiasGrad(const KernelCall& call) {
  const int64_t rows = RowsOf(call.inputs[0]), width = ColumnsOf(call.inputs[0]);
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += Get(call.inputs[0], r * width + c);
    Put(call, 0, c, sum);
  }
}

}  // namespace espalier::reference
