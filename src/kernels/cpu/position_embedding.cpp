// Rows of a table by position, added to the tokens; and their adjoint.
#include <cstring>

#include "kernels.hpp"

namespace espalier::cpu {
namespace {

/// Adds the rows of dy, summed over the batch, to the table's rows, within a range of columns that no other thread
/// touches.
template <typename T>
void AddRows(const KernelCall& call, int64_t begin, int64_t end) {
  const Tensor &positions = call.inputs[0], &dy = call.inputs[1], &table = call.outputs[0];
  const int64_t batch = dy.shape[0], length = dy.shape[1], width = dy.shape[2];
  for (int64_t s = 0; s < length; ++s) {
    const T* adjoint = dy.As<T>() + s * width;
    float* sums = table.As<float>() + PositionRow(positions, s, table) * width;
    ForLanes(begin, end, [=](int64_t c, auto lanes) {
      F16 sum{};
      for (int64_t b = 0; b < batch; ++b) sum += Load(adjoint + b * length * width + c, lanes);
      Store(sums + c, Load(sums + c, lanes) + sum, lanes);
    });
  }
}

}  // namespace

// x T[b,s,d], positions i32[s], table T[p,d] -> T[b,s,d]
void PositionEmbedding(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &positions = call.inputs[1], &table = call.inputs[2];
  const int64_t length = positions.shape[0], width = ColumnsOf(x);
  ForElementType(x.dtype, [&]<typename T>(T) {
    ParallelRanges(RowsOf(x), RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T *in = x.As<T>() + r * width, *row = table.As<T>() + PositionRow(positions, r % length, table) * width;
        T* y = call.outputs[0].As<T>() + r * width;
        ForLanes(0, width,
                 [=](int64_t c, auto lanes) { Store(y + c, Load(in + c, lanes) + Load(row + c, lanes), lanes); });
      }
    });
  });
}

// positions i32[s], dy T[b,s,d] -> f32[p,d]
void PositionEmbeddingGrad(const KernelCall& call) {
  const Tensor& table = call.outputs[0];
  if (!call.accumulate) std::memset(table.data, 0, static_cast<size_t>(Volume(table.shape)) * sizeof(float));
  ForElementType(call.inputs[1].dtype, [&]<typename T>(T) {
    ParallelRanges(table.shape[1], kLanes, [&](int64_t begin, int64_t end) { AddRows<T>(call, begin, end); });
  });
}

}  // namespace espalier::cpu
