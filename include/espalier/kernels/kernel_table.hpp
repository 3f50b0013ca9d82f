// The numeric leaves. One kernel per op and backend; `reference` is plain code with fp64 inside, the oracle of the
// others. Kernels know nothing of graphs, ranks or MPI: a tensor says where in the whole tensor it lies, no more.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "espalier/graph/attributes.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// A dense row-major local piece in memory.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  Shape shape;  ///< local extents
  Shape start;  ///< global index of the first element, per dim

  template <typename T>
  T* As() const { return static_cast<T*>(data); }
};

/// One kernel call. `accumulate`: add to the fp32 outputs instead of overwriting them (ops that declare it).
struct KernelCall {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  const Attributes* attributes = nullptr;
  bool accumulate = false;
};

using Kernel = void (*)(const KernelCall&);

/// The kernel of an op, or nullptr if the backend has none. Op names are those of src/ops.
Kernel FindReferenceKernel(std::string_view op);
Kernel FindCpuKernel(std::string_view op);

/// How bf16 products are computed on this processor, chosen once: "amx", "avx512_bf16" or "widen to fp32".
std::string_view CpuBf16Method();

/// Sets the threads that cpu kernels use (OpenMP and oneDNN); >= 1.
void SetCpuThreads(int threads);

}  // namespace espalier
