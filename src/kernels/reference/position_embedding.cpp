// Rows of a table by position, added to the tokens; and their adjoint.
#include <vector>

#include "access.hpp"

namespace espalier::reference {

// x T[b,s,d], positions i32[s], table T[p,d] -> T[b,s,d]
void PositionEmbedding(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &positions = call.inputs[1], &table = call.inputs[2];
  const int64_t length = positions.shape[0], width = ColumnsOf(x);
  for (int64_t r = 0; r < RowsOf(x); ++r) {
    const int64_t row = PositionRow(positions, r % length, table);
    for (int64_t c = 0; c < width; ++c)
      Set(call.outputs[0], r * width + c, Get(x, r * width + c) + Get(table, row * width + c));
  }
}

// positions i32[s], dy T[b,s,d] -> f32[p,d]
void PositionEmbeddingGrad(const KernelCall& call) {
  const Tensor &positions = call.inputs[0], &dy = call.inputs[1], &table = call.outputs[0];
  const int64_t length = positions.shape[0], width = ColumnsOf(dy);
  std::vector<double> sums(static_cast<size_t>(Volume(table.shape)), 0.0);
  for (int64_t r = 0; r < RowsOf(dy); ++r) {
    const int64_t row = PositionRow(positions, r % length, table);
    for (int64_t c = 0; c < width; ++c) sums[static_cast<size_t>(row * width + c)] += Get(dy, r * width + c);
  }
  for (int64_t i = 0; i < Volume(table.shape); ++i) Put(call, 0, i, sums[static_cast<size_t>(i)]);
}

}  // namespace espalier::reference
