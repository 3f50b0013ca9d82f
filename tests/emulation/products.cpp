// Products as a plain loop, in the place of src/kernels/cuda/products.cpp and measure_products.cpp.
#include "kernels/cuda/products.hpp"

#include <vector>

#include "emulate.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/util/error.hpp"

namespace espalier::cuda {
namespace {

float Load(const void* x, Dtype dtype, int64_t i) {
  return dtype == Dtype::kF32 ? static_cast<const float*>(x)[i] : ToFloat(static_cast<const Bf16*>(x)[i]);
}

void Store(void* x, Dtype dtype, int64_t i, float value) {
  if (dtype == Dtype::kF32)
    static_cast<float*>(x)[i] = value;
  else
    static_cast<Bf16*>(x)[i] = ToBf16(value);
}

/// Rows are summed side by side, so that the loop over a row of c is a vector's.
void MultiplyRow(const Product& product, const ProductMemory& memory, int64_t i) {
  const ProductShape& s = product.shape;
  std::vector<float> sums(static_cast<size_t>(s.n));
  for (int64_t p = 0; p < s.k; ++p) {
    const float a = Load(memory.a, product.input, i * s.a_row + p * s.a_column);
    for (int64_t j = 0; j < s.n; ++j)
      sums[static_cast<size_t>(j)] += a * Load(memory.b, product.input, p * s.b_row + j * s.b_column);
  }
  for (int64_t j = 0; j < s.n; ++j) {
    const int64_t at = i * s.c_row + j;
    const float more = product.accumulate ? Load(memory.c, product.output, at)
                       : product.bias     ? Load(memory.bias, product.output, j)
                                          : 0.0f;
    Store(memory.c, product.output, at, more + sums[static_cast<size_t>(j)]);
  }
}

}  // namespace

ProductPlatform GetProductPlatform() { return {"emulated", "plain loop"}; }

void PrepareProduct(const Product& product, int64_t workspace_bytes) {
  CHECK(workspace_bytes > 0, "product {}: no workspace is planned", ToString(product));
}

void Multiply(const Product& product, const ProductMemory& memory, cudaStream_t stream) {
  PrepareProduct(product, memory.workspace_bytes);
  emulation::issue(stream, [=] {
    for (int64_t i = 0; i < product.shape.m; ++i) MultiplyRow(product, memory, i);
  });
}

/// There is one algorithm, and nothing to time.
ProductPlans MeasureProducts(std::span<const ProductDemand> demands,
                             const std::function<void(const ProductPlan&)>& measured) {
  const ProductPlatform platform = GetProductPlatform();
  ProductPlans plans{platform.gpu, platform.library, {}};
  for (const ProductDemand& demand : demands) {
    plans.plans.push_back({demand.product, "00", 0, 1, 1});
    measured(plans.plans.back());
  }
  return plans;
}

}  // namespace espalier::cuda
