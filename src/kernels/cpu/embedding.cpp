// Rows of a table by token id, and their adjoint.
#include <cstring>

#include "kernels.hpp"

namespace espalier::cpu {
namespace {

/// Adds the rows of dy to the table's rows, within a range of columns that no other thread touches. Tokens come in
/// order, so each element's sum has one order on any number of threads.
template <typename T>
void AddRows(const KernelCall& call, int64_t begin, int64_t end) {
  const Tensor &ids = call.inputs[0], &table = call.outputs[0];
  const int64_t tokens = Volume(ids.shape), rows = table.shape[0], width = table.shape[1];
  const T* dy = call.inputs[1].As<T>();
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = ids.As<int32_t>()[t] - StartOf(table, 0);
    if (row < 0 || row >= rows) continue;
    float* sums = table.As<float>() + row * width;
    ForLanes(begin, end, [&](int64_t c, auto lanes) {
      Store(sums + c, Load(sums + c, lanes) + Load(dy + t * width + c, lanes), lanes);
    });
  }
}

}  // namespace

// ids i32[b,s], table T[v,d] -> T[b,s,d]
void Embedding(const KernelCall& call) {
  const Tensor &ids = call.inputs[0], &table = call.inputs[1];
  const int64_t rows = table.shape[0], bytes = table.shape[1] * SizeOf(table.dtype);
  ParallelRanges(Volume(ids.shape), RowGrain(table.shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = ids.As<int32_t>()[t] - StartOf(table, 0);
      char* y = call.outputs[0].As<char>() + t * bytes;
      if (row >= 0 && row < rows) {
        std::memcpy(y, table.As<char>() + row * bytes, static_cast<size_t>(bytes));
      } else {
        std::memset(y, 0, static_cast<size_t>(bytes));
      }
    }
  });
}

// ids i32[b,s], dy T[b,s,d] -> f32[v,d]
void EmbeddingGrad(const KernelCall& call) {
  const Tensor& table = call.outputs[0];
  if (!call.accumulate) {
    ParallelRanges(Volume(table.shape), kWorthAThread, [&](int64_t begin, int64_t end) {
      std::memset(table.As<float>() + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    });
  }
  ForElementType(call.inputs[1].dtype, [&]<typename T>(T) {
    ParallelRanges(table.shape[1], kLanes, [&](int64_t begin, int64_t end) { AddRows<T>(call, begin, end); });
  });
}

}  // namespace espalier::cpu
