// The numeric leaves. One kernel per op and backend; `reference` is plain code with fp64 inside, with which the others
// are compared. Kernels know nothing of graphs, ranks or MPI: a tensor only states its place in the whole tensor.
// src/kernels/arguments.hpp lists the inputs, outputs and attributes of each op.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "espalier/util/attributes.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// A dense row-major shard in memory.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  Shape shape;  ///< local extents
  Shape start;  ///< global index of the first element, per dim

  template <typename T>
  T* As() const {
    return static_cast<T*>(data);
  }
};

/// One kernel call. `accumulate`: add to the fp32 outputs instead of overwriting them (ops that declare it). `stream`:
/// the cudaStream_t on which a cuda kernel is issued; it returns at once, and all pointers are the device's.
struct KernelCall {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  const Attributes* attributes = nullptr;
  bool accumulate = false;
  void* stream = nullptr;
  /// The same call for several blocks of rows: the first input of block i is `input_stride_bytes` after the first input
  /// of block i - 1, the first output likewise; the blocks share all other operands. Only cuda's matmul takes more than
  /// one.
  int64_t blocks = 1, input_stride_bytes = 0, output_stride_bytes = 0;
};

using Kernel = void (*)(const KernelCall&);

/// The kernel of an op, or nullptr if the backend has none. Op names are defined in src/ops.
Kernel FindReferenceKernel(std::string_view op);
Kernel FindCpuKernel(std::string_view op);

/// The instruction level of the cpu's kernels, chosen once: "sse2", "avx2", "avx512", "avx512_bf16" or "amx" on x86-64,
/// "neon" on aarch64. The highest level that the processor has, or the one that the environment variable ESPALIER_ISA
/// names. Throws UserError (kDeck) if the processor lacks that.
std::string_view CpuLevel();

/// The level without ESPALIER_ISA.
std::string_view UncappedCpuLevel();

/// True if the cpu's bf16 GEMMs widen to fp32 because the level has no instructions for them.
bool CpuWidensBf16();

/// Sets the number of threads of cpu kernels (OpenMP), for calls from any thread; >= 1, else a CHECK fails.
/// Only matmul's bits depend on it.
void SetCpuThreads(int threads);

}  // namespace espalier
