#include "cublas_lt.hpp"

#include <fmt/core.h>

#include <stdexcept>

#include "column_major.hpp"
#include "kernels/cuda/runtime/prepare.hpp"
#include "kernels/cuda/runtime/workspace.hpp"

namespace espalier::cuda {
namespace {

cudaDataType_t TypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return CUDA_R_32F;
    case Dtype::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case Dtype::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16BF;
  }
}

cublasLtMatrixLayout_t LayoutOf(Dtype dtype, const ColumnMajor& x) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CALL(cublasLtMatrixLayoutCreate(&layout, TypeOf(dtype), static_cast<uint64_t>(x.rows),
                                         static_cast<uint64_t>(x.columns), x.leading));
  return layout;
}

/// Block i of a matrix is `stride` elements after block i - 1; 0: all blocks are the same.
void SetBlocks(cublasLtMatrixLayout_t layout, int64_t blocks, int64_t stride) {
  const auto count = static_cast<int32_t>(blocks);
  CUBLAS_CALL(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
  CUBLAS_CALL(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
}

cublasOperation_t OperationOn(const ColumnMajor& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

void SetBias(cublasLtMatmulDesc_t operation, const void* bias) {
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
}

void SetScales(cublasLtMatmulDesc_t operation, const void* first, const void* second) {
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &first, sizeof first));
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &second, sizeof second));
}

/// Scales of fp8 operands. Fast accumulation is off: it accumulates in the tensor cores, with about 14 bits on Hopper
/// (DeepSeek-AI 2024, section 3.5.2).
void SetScaleModes(cublasLtMatmulDesc_t operation, Scales scales) {
  const int8_t fast = 0;
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
  // Their alignment affects the choice of algorithms.
  const auto* anywhere = reinterpret_cast<const void*>(kBufferAlignment);
  SetScales(operation, anywhere, anywhere);
  if (scales == Scales::kTensor) return;
  const cublasLtMatmulMatrixScale_t shared =
      scales == Scales::kMx ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
    CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, mode, &shared, sizeof shared));
}

/// fp32 GEMMs multiply in fp32, never TF32: precision is the deck's, not the backend's.
cublasLtMatmulDesc_t OperationOf(const Gemm& p) {
  cublasLtMatmulDesc_t operation = nullptr;
  CUBLAS_CALL(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t first = OperationOn(FirstOperand(p.shape)), second = OperationOn(SecondOperand(p.shape));
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
  const cublasLtEpilogue_t epilogue = p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  CUBLAS_CALL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  if (p.bias)
    SetBias(operation,
            reinterpret_cast<const void*>(kBufferAlignment));  // its alignment affects the choice of algorithms
  if (p.scales != Scales::kNone) SetScaleModes(operation, p.scales);
  return operation;
}

template <typename T>
void Prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  CUBLAS_CALL(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

/// Limits for every algorithm. Slices of the contracted dim are added in order from fp32 copies. Added in place, their
/// order would be the order in which blocks arrive; in the output's type, sums would be rounded to bf16 in between.
void SetLimits(cublasLtMatmulPreference_t preference, int64_t workspace_bytes) {
  Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(UsableBytes(workspace_bytes)));
  const uint32_t all = CUBLASLT_REDUCTION_SCHEME_MASK, ordered = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, GetCudaKernelOptions().deterministic ? ordered : all);
}

/// Alignment in bytes of an operand. It may begin at any row of a buffer, and its blocks lie `block` elements apart.
uint32_t AlignmentOf(Dtype dtype, const ColumnMajor& x, int64_t block) {
  const int64_t bits = kBufferAlignment | x.leading * SizeOf(dtype) | block * SizeOf(dtype);
  return static_cast<uint32_t>(bits & -bits);
}

void PromiseAlignment(cublasLtMatmulPreference_t preference, const Gemm& p) {
  const uint32_t result = AlignmentOf(p.output, ResultOf(p.shape), p.shape.c_block);
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
         AlignmentOf(p.TypeOfB(), FirstOperand(p.shape), p.shape.b_block));
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         AlignmentOf(p.input, SecondOperand(p.shape), p.shape.a_block));
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result);
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result);
}

}  // namespace

void FailCublas(const char* file, int line, const char* expression, cublasStatus_t status) {
  throw std::runtime_error(fmt::format("{}:{}: {} failed: {}", file, line, expression, cublasLtGetStatusName(status)));
}

cublasLtHandle_t CublasHandle() {
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t made = nullptr;
    CUBLAS_CALL(cublasLtCreate(&made));
    return made;
  }();
  return handle;
}

CublasGemm::CublasGemm(const Gemm& p)
    : gemm_(p),
      beta_(p.accumulate ? 1.0f : 0.0f),
      operation_(OperationOf(p)),
      first_(LayoutOf(p.TypeOfB(), FirstOperand(p.shape))),
      second_(LayoutOf(p.input, SecondOperand(p.shape))),
      result_(LayoutOf(p.output, ResultOf(p.shape))) {
  if (p.shape.blocks == 1) return;
  SetBlocks(first_.get(), p.shape.blocks, p.shape.b_block);
  SetBlocks(second_.get(), p.shape.blocks, p.shape.a_block);
  SetBlocks(result_.get(), p.shape.blocks, p.shape.c_block);
}

std::vector<cublasLtMatmulHeuristicResult_t> CublasGemm::Candidates(int max_count, int64_t workspace_bytes) const {
  cublasLtMatmulPreference_t made = nullptr;
  CUBLAS_CALL(cublasLtMatmulPreferenceCreate(&made));
  const Owned<cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulPreferenceDestroy> preference(made);
  SetLimits(preference.get(), workspace_bytes);
  PromiseAlignment(preference.get(), gemm_);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(max_count));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(CublasHandle(), operation_.get(), first_.get(), second_.get(), result_.get(),
                                     result_.get(), preference.get(), max_count, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    count = 0;
  else
    CUBLAS_CALL(status);
  found.resize(static_cast<size_t>(count));
  std::erase_if(found, [](const auto& x) { return x.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

int64_t CublasGemm::WorkspaceOf(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(CublasHandle(), operation_.get(), first_.get(), second_.get(),
                                                        result_.get(), result_.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS ? static_cast<int64_t>(result.workspaceSize) : -1;
}

void CublasGemm::Run(const cublasLtMatmulAlgo_t& algorithm, const GemmOperands& x, cudaStream_t stream) const {
  const float one = 1.0f;
  if (x.bias != nullptr) SetBias(operation_.get(), x.bias);
  if (x.a_scales != nullptr) SetScales(operation_.get(), x.b_scales, x.a_scales);
  const Workspace workspace = AlignedWorkspace(x.workspace, x.workspace_bytes);
  CUBLAS_CALL(cublasLtMatmul(CublasHandle(), operation_.get(), &one, x.b, first_.get(), x.a, second_.get(), &beta_, x.c,
                             result_.get(), x.c, result_.get(), &algorithm, workspace.data,
                             static_cast<size_t>(workspace.bytes), stream));
}

}  // namespace espalier::cuda
