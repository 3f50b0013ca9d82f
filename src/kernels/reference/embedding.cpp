// Rows of a table by token id, and their adjoint.
#include <vector>

#include "access.hpp"

namespace espalier::reference {

// ids i32[b,s], table T[v,d] -> T[b,s,d]
void Embedding(const KernelCall& call) {
  const Tensor& ids = call.inputs[0];
  const Tensor& table = call.inputs[1];
  const int64_t tokens = Volume(ids.shape), rows = table.shape[0], width = table.shape[1];
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = ids.As<int32_t>()[t] - StartOf(table, 0);
    const bool here = row >= 0 && row < rows;
    for (int64_t c = 0; c < width; ++c) {
      Set(call.outputs[0], t * width + c, here ? Get(table, row * width + c) : 0.0);
    }
  }
}

// ids i32[b,s], dy T[b,s,d] -> f32[v,d]
void EmbeddingGrad(const KernelCall& call) {
  const Tensor& ids = call.inputs[0];
  const Tensor& dy = call.inputs[1];
  const Tensor& table = call.outputs[0];
  const int64_t tokens = Volume(ids.shape), rows = table.shape[0], width = table.shape[1];
  std::vector<double> sums(static_cast<size_t>(rows * width), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = ids.As<int32_t>()[t] - StartOf(table, 0);
    if (row < 0 || row >= rows) continue;
    for (int64_t c = 0; c < width; ++c) sums[static_cast<size_t>(row * width + c)] += Get(dy, t * width + c);
  }
  for (int64_t i = 0; i < rows * width; ++i) Put(call, 0, i, sums[static_cast<size_t>(i)]);
}

}  // namespace espalier::reference
