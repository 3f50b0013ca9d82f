// Products on the device. products.cpp gives them to cuBLASLt; the emulation (tests/emulation) puts a plain loop behind
// this header.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "espalier/kernels/product.hpp"

namespace espalier::cuda {

/// What the algorithms are made for: "NVIDIA H200", "cuBLASLt 13.1.0".
struct ProductPlatform {
  std::string gpu, library;
};
ProductPlatform GetProductPlatform();

/// Device memory of a product; `workspace` is free for the length of the call.
struct ProductMemory {
  const void *a, *b;
  const void* bias;  ///< nullptr: none
  void* c;
  void* workspace;
  int64_t workspace_bytes;
};

/// Chooses the algorithm: that of the plan file, else the library's first that stays within the workspace. Throws
/// UserError (kDoesNotFit) if there is none. A product that was not prepared is at its first call.
void PrepareProduct(const Product& product, int64_t workspace_bytes);

/// Issues c = a b, c = a b + bias, or c += a b. No extent is 0.
void Multiply(const Product& product, const ProductMemory& memory, cudaStream_t stream);

}  // namespace espalier::cuda
