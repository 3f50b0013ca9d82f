#include "position_embedding.hpp"

#include "embedding.hpp"
#include "kernels.hpp"

namespace espalier::cuda {

// x T[b,s,d], positions i32[s], table T[p,d] -> T[b,s,d]
void PositionEmbedding(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &positions = call.inputs[1], &table = call.inputs[2];
  LaunchPositionEmbedding(FloatTypeOf(x), x.data, positions.As<int32_t>(), positions.shape[0], table.data,
                          table.shape[0], RowsOf(x), ColumnsOf(x), call.outputs[0].data, StreamOf(call));
}

// positions i32[s], dy T[b,s,d] -> f32[p,d]
void PositionEmbeddingGrad(const KernelCall& call) {
  const Tensor &positions = call.inputs[0], &dy = call.inputs[1], &table = call.outputs[0];
  LaunchAddRows(FloatTypeOf(dy), positions.As<int32_t>(), dy.shape[1], dy.data, dy.shape[0], table.As<float>(), 0,
                table.shape[0], table.shape[1], call.accumulate, StreamOf(call));
}

}  // namespace espalier::cuda
