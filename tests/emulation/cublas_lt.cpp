// The part of cuBLASLt's C interface that src/kernels/cuda/gemm uses, as plain loops on the host. Matrices are
// column-major, as the library has them. Forms that the library refuses are refused here, too; what would end a GPU's
// context ends the process. There are several algorithms: without and with slices of the contracted dim, which are
// added as reduction schemes say; in place, their order is drawn anew in every call. ESPALIER_EMULATED_CUBLASLT in the
// environment has words, separated by commas: `aligned` ends the process at an operand below the alignment that was
// promised, `hungry` wants more workspace than allowed, `refuse:N` has no algorithm for one in N forms.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "emulate.hpp"
#include "espalier/util/types.hpp"
#include "kernels/fp8.hpp"
#include "switches.hpp"

struct cublasLtContext {};

namespace espalier::emulation {
namespace {

struct Layout : cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, columns, leading;
  int32_t count = 1;
  int64_t stride = 0;
};

struct Operation : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  const void *a_scale = nullptr, *b_scale = nullptr;
  cublasLtMatmulMatrixScale_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = a_mode;
  int8_t fast_accumulation = 0;
};

struct Preference : cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};  ///< of A, B, C and D
};

/// All that an algorithm depends on.
struct Problem {
  Operation operation;
  Layout a, b, c, d;

  bool TransposesA() const { return operation.transpose_a == CUBLAS_OP_T; }
  bool TransposesB() const { return operation.transpose_b == CUBLAS_OP_T; }
  int64_t M() const { return d.rows; }
  int64_t N() const { return d.columns; }
  int64_t K() const { return TransposesA() ? a.rows : a.columns; }
  bool HasBias() const { return operation.epilogue == CUBLASLT_EPILOGUE_BIAS; }
  bool HasRowScales() const { return operation.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; }
  bool HasBlockScales() const { return operation.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0; }
};

/// The content of an algorithm's 64 bytes.
struct Algorithm {
  char word[16] = "emulated";
  uint64_t form = 0;  ///< of the problems that it computes
  int32_t slices = 1;
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  uint16_t alignments[4] = {};  ///< that were promised for A, B, C and D
  uint64_t unused[3] = {};
};
Algorithm AlgorithmOf(const cublasLtMatmulAlgo_t& bytes) { return std::bit_cast<Algorithm>(bytes); }

int64_t SizeOf(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }
bool IsFp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
bool IsFloat(cudaDataType_t type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

constexpr const char* kSwitches = "ESPALIER_EMULATED_CUBLASLT";
bool IsSet(const char* word) { return HasSwitch(kSwitches, word); }

/// The library has kernels for combinations of types, transpositions and epilogue.
uint64_t FormOf(const Problem& p) {
  const uint64_t bits[] = {static_cast<uint64_t>(p.a.type),
                           static_cast<uint64_t>(p.b.type),
                           static_cast<uint64_t>(p.d.type),
                           static_cast<uint64_t>(p.operation.transpose_a),
                           static_cast<uint64_t>(p.operation.transpose_b),
                           static_cast<uint64_t>(p.operation.epilogue),
                           static_cast<uint64_t>(p.operation.a_mode)};
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bits), sizeof bits});
}
/// The form and the extents.
uint64_t HashOf(const Problem& p) {
  const int64_t bits[] = {static_cast<int64_t>(FormOf(p)), p.M(), p.N(), p.K(), p.d.count};
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bits), sizeof bits});
}

/// Descriptors that contradict each other.
bool Contradicts(const Problem& p) {
  const auto too_short = [](const Layout& x) { return x.leading < x.rows || x.rows < 1 || x.columns < 1; };
  const int64_t a_rows = p.TransposesA() ? p.a.columns : p.a.rows, b_rows = p.TransposesB() ? p.b.columns : p.b.rows,
                b_columns = p.TransposesB() ? p.b.rows : p.b.columns;
  return too_short(p.a) || too_short(p.b) || too_short(p.c) || too_short(p.d) || a_rows != p.M() || b_rows != p.K() ||
         b_columns != p.N() || p.c.rows != p.M() || p.c.columns != p.N() || p.a.count != p.d.count ||
         p.b.count != p.d.count || p.c.count != p.d.count;
}

/// Tensor cores take fp8 operands that are contiguous along the contracted dim, in multiples of 16 bytes, and not two
/// of e5m2; scales of rows on compute capability 9.0 only, scales of blocks of 32 from 10.0 on.
bool TakesFp8(const Problem& p) {
  const int capability = Capability();
  if (capability < 89 || (p.HasRowScales() && capability != 90)) return false;
  if (p.HasBlockScales() && (capability < 100 || p.K() % 32 != 0)) return false;
  if (p.operation.a_mode != p.operation.b_mode || p.d.count > 1) return false;
  if (p.operation.a_scale == nullptr || p.operation.b_scale == nullptr) return false;
  if (!p.TransposesA() || p.TransposesB()) return false;
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return false;
  if (p.HasBias() && p.d.type != CUDA_R_16BF) return false;
  return p.K() % 16 == 0 && p.M() % 16 == 0 && p.a.leading % 16 == 0 && p.b.leading % 16 == 0 &&
         p.d.leading * SizeOf(p.d.type) % 16 == 0;
}

bool IsSupported(const Problem& p) {
  if (p.operation.compute != CUBLAS_COMPUTE_32F || p.operation.scale != CUDA_R_32F) return false;
  if (p.c.type != p.d.type || !IsFloat(p.d.type)) return false;
  if (p.HasBias() && p.operation.bias == nullptr) return false;
  if (const auto n = static_cast<uint64_t>(SwitchedNumber(kSwitches, "refuse:", 0)); n > 0 && HashOf(p) % n == 0)
    return false;
  if (IsFp8(p.a.type) && IsFp8(p.b.type)) return TakesFp8(p);
  return p.a.type == p.b.type && IsFloat(p.a.type) && (p.a.type == CUDA_R_16BF || p.d.type == CUDA_R_32F);
}

cublasStatus_t StateOf(const Problem& p) {
  if (Contradicts(p)) return CUBLAS_STATUS_INVALID_VALUE;
  return IsSupported(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

size_t WorkspaceOf(const Problem& p, const Algorithm& algorithm) {
  const auto partials = static_cast<size_t>(algorithm.slices * p.d.count * p.M() * p.N());
  if (algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return partials * sizeof(float);
  if (algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
    return partials * static_cast<size_t>(SizeOf(p.d.type));
  return 0;
}

/// The algorithms of a problem, in the order in which the library prefers them.
std::vector<Algorithm> AlgorithmsOf(const Problem& p, const Preference& preference) {
  constexpr int64_t kWorthSlices = 48;
  constexpr int32_t kSlices = 3;
  std::vector<Algorithm> all;
  Algorithm algorithm;
  algorithm.form = FormOf(p);
  for (int i = 0; i < 4; ++i) algorithm.alignments[i] = static_cast<uint16_t>(preference.alignments[i]);
  for (const uint32_t scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_NONE}) {
    const bool sliced = scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
    if (sliced && ((preference.reduction_schemes & scheme) == 0 || p.K() < kWorthSlices)) continue;
    algorithm.scheme = scheme;
    algorithm.slices = sliced ? kSlices : 1;
    if (WorkspaceOf(p, algorithm) <= preference.workspace_bytes && !IsSet("hungry")) all.push_back(algorithm);
  }
  return all;
}

float Load(const std::byte* x, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_32F:
      return reinterpret_cast<const float*>(x)[i];
    case CUDA_R_16BF:
      return ToFloat(reinterpret_cast<const Bf16*>(x)[i]);
    default:
      return FromFp8(type == CUDA_R_8F_E4M3 ? Dtype::kF8E4M3 : Dtype::kF8E5M2, reinterpret_cast<const uint8_t*>(x)[i]);
  }
}

void Store(std::byte* x, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F)
    reinterpret_cast<float*>(x)[i] = value;
  else
    reinterpret_cast<Bf16*>(x)[i] = ToBf16(value);
}
float Rounded(cudaDataType_t type, float value) { return type == CUDA_R_32F ? value : ToFloat(ToBf16(value)); }

/// One call, as it runs on its stream.
struct Call {
  Problem p;
  Algorithm algorithm;
  float alpha, beta;
  const std::byte *a, *b, *c;
  std::byte *d, *workspace;
  size_t workspace_bytes;

  void Run() const {
    std::memset(workspace, 0xff, workspace_bytes);
    for (int64_t i = 0; i < p.d.count; ++i) RunBlock(i);
  }

 private:
  static const std::byte* Block(const std::byte* x, const Layout& layout, int64_t i) {
    return x + i * layout.stride * SizeOf(layout.type);
  }

  void RunBlock(int64_t block) const {
    const std::vector<float> first = FirstOperand(Block(a, p.a, block));
    std::vector<int32_t> order(static_cast<size_t>(algorithm.slices));
    std::iota(order.begin(), order.end(), 0);
    if (algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE) {
      static std::mt19937 random(std::random_device{}());
      std::ranges::shuffle(order, random);
    }
    for (int64_t j = 0; j < p.N(); ++j) RunColumn(first, block, j, order);
  }

  /// Operand A, transposed or not, as fp32 [k,m].
  std::vector<float> FirstOperand(const std::byte* x) const {
    std::vector<float> values(static_cast<size_t>(p.K() * p.M()));
    for (int64_t q = 0; q < p.K(); ++q)
      for (int64_t i = 0; i < p.M(); ++i)
        values[static_cast<size_t>(q * p.M() + i)] =
            Load(x, p.a.type, p.TransposesA() ? q + i * p.a.leading : i + q * p.a.leading) *
            BlockScale(p.operation.a_scale, i, q);
    return values;
  }

  /// The scale of contracted element q of row i of A or column i of B, in tiles of 128 by 4 scales ("1D Block Scaling
  /// Factors Layout" in cuBLAS's documentation).
  float BlockScale(const void* scales, int64_t i, int64_t q) const {
    if (!p.HasBlockScales()) return 1;
    const int64_t block = q / 32, blocks = (p.K() / 32 + 3) / 4 * 4, tile = i / 128 * (blocks / 4) + block / 4,
                  within = i % 32 * 16 + i / 32 % 4 * 4 + block % 4;
    const uint8_t code = static_cast<const uint8_t*>(scales)[tile * 512 + within];
    return code == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
  }

  /// Slices are summed in `order`. A partial sum that is kept in the workspace is rounded to its type there; in place,
  /// the result is, after every slice.
  void RunColumn(const std::vector<float>& first, int64_t block, int64_t j, const std::vector<int32_t>& order) const {
    const std::byte *second = Block(b, p.b, block), *old = Block(c, p.c, block);
    std::byte* const result = d + block * p.d.stride * SizeOf(p.d.type);
    const bool in_place = algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE,
               in_output = algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    std::vector<float> total(static_cast<size_t>(p.M()));
    for (const int32_t slice : order) {
      const std::vector<float> sums = SliceOfColumn(first, second, j, slice);
      for (size_t i = 0; i < sums.size(); ++i)
        total[i] = in_place ? Rounded(p.d.type, total[i] + sums[i])
                            : total[i] + (in_output ? Rounded(p.d.type, sums[i]) : sums[i]);
    }
    for (int64_t i = 0; i < p.M(); ++i) {
      const float before = beta == 0 ? 0 : beta * Load(old, p.c.type, i + j * p.c.leading),
                  bias = p.HasBias() ? Load(static_cast<const std::byte*>(p.operation.bias), p.d.type, i) : 0;
      Store(result, p.d.type, i + j * p.d.leading, before + bias + alpha * Scale(i, j) * total[static_cast<size_t>(i)]);
    }
  }

  /// The elements of a column are summed side by side, so that the loop is vectorized.
  std::vector<float> SliceOfColumn(const std::vector<float>& first, const std::byte* second, int64_t j,
                                   int32_t slice) const {
    std::vector<float> sums(static_cast<size_t>(p.M()));
    const int64_t begin = p.K() * slice / algorithm.slices, end = p.K() * (slice + 1) / algorithm.slices;
    for (int64_t q = begin; q < end; ++q) {
      const float x = Load(second, p.b.type, p.TransposesB() ? j + q * p.b.leading : q + j * p.b.leading) *
                      BlockScale(p.operation.b_scale, j, q);
      const float* const row = first.data() + q * p.M();
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += row[i] * x;
    }
    return sums;
  }

  float Scale(int64_t i, int64_t j) const {
    if (!IsFp8(p.a.type) || p.HasBlockScales()) return 1;
    const auto of = [&](const void* scales, int64_t line) {
      return static_cast<const float*>(scales)[p.HasRowScales() ? line : 0];
    };
    return of(p.operation.a_scale, i) * of(p.operation.b_scale, j);
  }
};

/// Kernels access 16 bytes at once, or as many as were promised if the environment says so.
void CheckAligned(const Call& call) {
  constexpr uint16_t kAccess = 16;
  const std::byte* const operands[] = {call.a, call.b, call.c, call.d};
  for (int i = 0; i < 4; ++i) {
    const uint16_t promised = call.algorithm.alignments[i];
    const uint16_t needed = IsSet("aligned") ? promised : std::min(promised, kAccess);
    if (reinterpret_cast<uintptr_t>(operands[i]) % needed != 0)
      EndContext("cuBLASLt", "an operand below the alignment that was promised");
  }
}

template <typename T>
cublasStatus_t Set(T& value, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, from, sizeof value);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Derived, typename Opaque>
Derived& As(Opaque* x) {
  return *static_cast<Derived*>(x);
}

Problem ProblemOf(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {As<Operation>(operation), As<Layout>(a), As<Layout>(b), As<Layout>(c), As<Layout>(d)};
}

cublasLtMatmulHeuristicResult_t ResultOf(const Problem& p, const Algorithm& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  result.algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  result.workspaceSize = WorkspaceOf(p, algorithm);
  result.state = CUBLAS_STATUS_SUCCESS;
  result.wavesCount = 1;
  return result;
}

}  // namespace
}  // namespace espalier::emulation

using namespace espalier::emulation;

// NOLINTBEGIN: cuBLASLt's names
extern "C" {

size_t cublasLtGetVersion() { return static_cast<size_t>(Version("cuBLASLt", CUBLAS_VERSION, 10000, 100)); }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "a status of emulated cuBLASLt";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static cublasLtContext context;
  *handle = &context;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *layout = new Layout{{}, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t layout) {
  delete static_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* from,
                                                size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Set(As<Layout>(layout).count, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Set(As<Layout>(layout).stride, from, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *operation = new Operation{{}, compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(const cublasLtMatmulDesc_t operation) {
  delete static_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t bytes) {
  auto& operation = As<Operation>(to);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(operation.transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Set(operation.transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(operation.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(operation.bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return Set(operation.a_scale, from, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return Set(operation.b_scale, from, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return Set(operation.a_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return Set(operation.b_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return Set(operation.fast_accumulation, from, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new Preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(const cublasLtMatmulPreference_t preference) {
  delete static_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
                                                    size_t bytes) {
  auto& preference = As<Preference>(to);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(preference.workspace_bytes, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(preference.reduction_schemes, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(preference.alignments[0], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(preference.alignments[1], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(preference.alignments[2], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(preference.alignments[3], from, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  const Problem p = ProblemOf(operation, a, b, c, d);
  *count = 0;
  if (const cublasStatus_t state = StateOf(p); state != CUBLAS_STATUS_SUCCESS) return state;
  for (const Algorithm& algorithm : AlgorithmsOf(p, As<Preference>(preference)))
    if (*count < most) results[(*count)++] = ResultOf(p, algorithm);
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  const Problem p = ProblemOf(operation, a, b, c, d);
  const Algorithm algorithm = AlgorithmOf(*algo);
  if (std::memcmp(algorithm.word, Algorithm().word, sizeof algorithm.word) != 0 || algorithm.form != FormOf(p))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t state = StateOf(p); state != CUBLAS_STATUS_SUCCESS) return state;
  *result = ResultOf(p, algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

/// Values of the host are read now, those of the device when the stream comes to the call.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  constexpr uintptr_t kWorkspaceAlignment = 256;
  cublasLtMatmulHeuristicResult_t result{};
  if (const cublasStatus_t state =
          cublasLtMatmulAlgoCheck(handle, operation, a_layout, b_layout, c_layout, d_layout, algo, &result);
      state != CUBLAS_STATUS_SUCCESS)
    return state;
  if (result.workspaceSize > workspace_bytes || reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  const Call call{ProblemOf(operation, a_layout, b_layout, c_layout, d_layout),
                  AlgorithmOf(*algo),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  static_cast<const std::byte*>(a),
                  static_cast<const std::byte*>(b),
                  static_cast<const std::byte*>(c),
                  static_cast<std::byte*>(d),
                  static_cast<std::byte*>(workspace),
                  workspace_bytes};
  CheckAligned(call);
  issue(stream, [call] { call.Run(); });
  return CUBLAS_STATUS_SUCCESS;
}
}
// NOLINTEND
