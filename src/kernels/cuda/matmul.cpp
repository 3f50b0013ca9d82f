#include "matmul.hpp"

#include "kernels.hpp"
#include "products.hpp"

namespace espalier::cuda {
namespace {

bool IsEmpty(const ProductShape& s) { return s.m * s.n * s.k == 0; }

/// A sum of nothing, and a bias.
void Clear(const KernelCall& call) {
  const Tensor& c = call.outputs[0];
  if (!call.accumulate) LaunchClear(c.data, Volume(c.shape) * SizeOf(c.dtype), StreamOf(call));
  if (call.inputs.size() < 3) return;
  const Tensor inputs[] = {c, call.inputs[2]};
  AddBias({.inputs = inputs, .outputs = call.outputs, .stream = call.stream});
}

}  // namespace

void PrepareMatmul(const KernelCall& call) {
  const Product product = ProductOf(call);
  if (!IsEmpty(product.shape)) PrepareProduct(product, call.workspace_bytes);
}

// a, b -> c, lettered by `spec`; bf16 products accumulate in fp32, fp32 ones multiply in fp32. With a bias: plus it,
// rounded once
void Matmul(const KernelCall& call) {
  const Product product = ProductOf(call);
  if (IsEmpty(product.shape)) return Clear(call);
  Multiply(product,
           {call.inputs[0].data, call.inputs[1].data, DataOrNull<void>(call.inputs, 2), call.outputs[0].data,
            call.workspace, call.workspace_bytes},
           StreamOf(call));
}

}  // namespace espalier::cuda
