#include "embedding.hpp"

#include "kernels.hpp"

namespace espalier::cuda {

// ids i32[b,s], table T[v,d] -> T[b,s,d]
void Embedding(const KernelCall& call) {
  const Tensor &ids = call.inputs[0], &table = call.inputs[1];
  LaunchEmbedding(FloatTypeOf(table), ids.As<int32_t>(), Volume(ids.shape), table.data, StartOf(table, 0),
                  table.shape[0], table.shape[1], call.outputs[0].data, StreamOf(call));
}

// ids i32[b,s], dy T[b,s,d] -> f32[v,d]
void EmbeddingGrad(const KernelCall& call) {
  const Tensor &ids = call.inputs[0], &dy = call.inputs[1], &table = call.outputs[0];
  CHECK(Volume(ids.shape) <= INT32_MAX, "embedding_grad: {} tokens", Volume(ids.shape));
  LaunchAddRows(FloatTypeOf(dy), ids.As<int32_t>(), Volume(ids.shape), dy.data, 1, table.As<float>(), StartOf(table, 0),
                table.shape[0], table.shape[1], call.accumulate, StreamOf(call));
}

}  // namespace espalier::cuda
