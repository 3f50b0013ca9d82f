// GEMMs by src/kernels/cuda/gemm over emulated cuBLASLt: what the library refuses, and what its switches find. (The
// tests of kernels compare values with fp64, in all letterings, types and epilogues.)
#include "kernels/cuda/gemm/cublas_lt.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/types.hpp"
#include "executor/cuda/handles.hpp"
#include "kernels/cuda/runtime/prepare.hpp"

namespace espalier::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWorkspace = 1 << 20;

/// c[m,n] = a[m,k] b[n,k].
Gemm Dense(int64_t m, int64_t n, int64_t k, Dtype input, Dtype output) {
  return {{m, n, k, k, 1, 1, k, n}, input, output};
}
Gemm Fp8(Scales scales, Dtype a, Dtype b, Dtype output) {
  Gemm gemm = Dense(32, 48, 64, a, output);
  gemm.scales = scales;
  gemm.scaled_b = b;
  return gemm;
}

class CublasLt : public ::testing::Test {
 protected:
  void SetUp() override { ConfigureCudaKernels(true, ""); }
  void TearDown() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    set_.push_back("ESPALIER_EMULATED_" + name);
    setenv(set_.back().c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::string> set_;
};

bool Takes(const Gemm& gemm) { return !CublasGemm(gemm).Candidates(16, kWorkspace).empty(); }

std::string Refusal(const Gemm& gemm) {
  try {
    PrepareGemm(gemm, kWorkspace);
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kDoesNotFit);
    return error.messages().at(0);
  }
  return "";
}

/// Operands of ones, `skip` bytes behind a multiple of the alignment of buffers.
struct Operands {
  explicit Operands(const Gemm& gemm, int64_t skip = 0)
      : a(Ones(gemm.shape.m * gemm.shape.k)),
        b(Ones(gemm.shape.k * gemm.shape.n)),
        c(Ones(gemm.shape.m * gemm.shape.n)),
        workspace(kWorkspace),
        memory{a->data() + skip, b->data(), nullptr, nullptr, nullptr, c->data(), workspace.data(), kWorkspace} {}
  static std::unique_ptr<DeviceMemory> Ones(int64_t count) {
    const std::vector<float> ones(static_cast<size_t>(count) + 64, 1);
    auto memory = std::make_unique<DeviceMemory>(ones.size() * sizeof(float));
    CopyToDevice(memory->data(), ones.data(), ones.size() * sizeof(float));
    return memory;
  }

  std::unique_ptr<DeviceMemory> a, b, c;
  DeviceMemory workspace;
  GemmOperands memory;
};

TEST_F(CublasLt, TakesFp8OnlyAsTensorCoresDo) {
  const auto e4m3 = Dtype::kF8E4M3, e5m2 = Dtype::kF8E5M2;
  for (const Scales scales : {Scales::kTensor, Scales::kRow}) {
    EXPECT_TRUE(Takes(Fp8(scales, e4m3, e4m3, Dtype::kBf16)));
    EXPECT_TRUE(Takes(Fp8(scales, e5m2, e4m3, Dtype::kF32)));
    EXPECT_FALSE(Takes(Fp8(scales, e5m2, e5m2, Dtype::kBf16)));
    Gemm biased = Fp8(scales, e4m3, e4m3, Dtype::kBf16), transposed = biased, odd = biased, batched = biased;
    biased.bias = true;
    EXPECT_TRUE(Takes(biased));
    biased.output = Dtype::kF32;
    EXPECT_FALSE(Takes(biased)) << "a bias of fp32";
    transposed.shape.a_row = 1, transposed.shape.a_column = 32;
    EXPECT_FALSE(Takes(transposed));
    odd.shape.k = odd.shape.a_row = odd.shape.b_column = 72;
    EXPECT_FALSE(Takes(odd)) << "72 bytes are no multiple of 16";
    batched.shape.blocks = 2, batched.shape.a_block = 32 * 64, batched.shape.c_block = 32 * 48;
    EXPECT_FALSE(Takes(batched));
  }
}

TEST_F(CublasLt, TakesFp8ByTheCapability) {
  const auto by = [](Scales scales) { return Fp8(scales, Dtype::kF8E4M3, Dtype::kF8E4M3, Dtype::kBf16); };
  for (const auto& [capability, tensor, row, mx] : {std::tuple("80", false, false, false),
                                                    {"89", true, false, false},
                                                    {"90", true, true, false},
                                                    {"100", true, false, true}}) {
    Set("CAPABILITY", capability);
    EXPECT_EQ(Takes(by(Scales::kTensor)), tensor) << capability;
    EXPECT_EQ(Takes(by(Scales::kRow)), row) << capability;
    EXPECT_EQ(Takes(by(Scales::kMx)), mx) << capability;
    EXPECT_TRUE(Takes(Dense(5, 7, 3, Dtype::kBf16, Dtype::kF32))) << capability;
  }
}

TEST_F(CublasLt, RefusesDescriptorsThatContradictEachOther) {
  Gemm gemm = Dense(5, 7, 3, Dtype::kF32, Dtype::kF32);
  EXPECT_TRUE(Takes(gemm));
  gemm.shape.c_row = 6;  // rows of 7
  EXPECT_THROW(Takes(gemm), std::runtime_error);
}

TEST_F(CublasLt, AHungryLibraryIsReportedWithTheProduct) {
  const Gemm gemm = Dense(6, 10, 14, Dtype::kBf16, Dtype::kBf16);
  Set("CUBLASLT", "hungry");
  EXPECT_THAT(Refusal(gemm), AllOf(HasSubstr("GEMM 6 x 10 x 14, bf16 -> bf16"),
                                   HasSubstr("has no algorithm within 1048576 bytes of workspace on an emulated GPU")));
  Set("CUBLASLT", "");
  EXPECT_EQ(Refusal(gemm), "");
}

TEST_F(CublasLt, RefusesOneFormInSoMany) {
  int refused = 0;
  Set("CUBLASLT", "refuse:4");
  for (int64_t n = 1; n <= 100; ++n) refused += !Takes(Dense(3, n, 5, Dtype::kBf16, Dtype::kBf16));
  EXPECT_GT(refused, 5);
  EXPECT_LT(refused, 60);
}

// Rows of 32 bytes are aligned to 32. Planted: an operand 16 bytes behind a row.
TEST_F(CublasLt, AnOperandBelowThePromisedAlignmentIsFound) {
  const Gemm gemm = Dense(8, 8, 8, Dtype::kF32, Dtype::kF32);
  const Operands right(gemm), row(gemm, 32), wrong(gemm, 16);
  Multiply(gemm, wrong.memory, nullptr);
  Set("CUBLASLT", "aligned");
  Multiply(gemm, right.memory, nullptr);
  Multiply(gemm, row.memory, nullptr);
  EXPECT_DEATH(Multiply(gemm, wrong.memory, nullptr), "below the alignment that was promised");
}

/// c of a product whose three slices, of 64 terms each, round differently in each order.
std::vector<float> Spread(const Gemm& gemm) {
  constexpr float kOfSlice[] = {1e8f, -1e8f, 1};
  Operands x(gemm);
  std::vector<float> values(static_cast<size_t>(gemm.shape.m * gemm.shape.k));
  for (size_t i = 0; i < values.size(); ++i) values[i] = kOfSlice[i % 192 / 64];
  CopyToDevice(x.a->data(), values.data(), values.size() * sizeof(float));
  Multiply(gemm, x.memory, nullptr);
  CUDA_CALL(cudaStreamSynchronize(nullptr));
  const auto* const c = reinterpret_cast<const float*>(x.c->data());
  return {c, c + gemm.shape.m * gemm.shape.n};
}

// Planted: the options of a run that may differ from one time to the next.
TEST_F(CublasLt, OrdersOfSumsThatChangeAreFound) {
  const Gemm gemm = Dense(16, 24, 192, Dtype::kF32, Dtype::kF32);
  const auto differs = [](const Gemm& g) {
    for (int i = 0; i < 20; ++i)
      if (Spread(g) != Spread(g)) return true;
    return false;
  };
  EXPECT_FALSE(differs(gemm));
  ConfigureCudaKernels(false, "");
  Gemm other = gemm;  // is not prepared yet
  other.shape.m = 17;
  EXPECT_TRUE(differs(other));
}

TEST_F(CublasLt, SlicesNeedTheirWorkspace) {
  const CublasGemm gemm(Dense(16, 24, 192, Dtype::kF32, Dtype::kF32));
  const auto needed = [&](int64_t allowed) { return gemm.Candidates(16, allowed).at(0).workspaceSize; };
  EXPECT_EQ(needed(kWorkspace), 3u * 16 * 24 * sizeof(float));
  EXPECT_EQ(needed(1000), 0u);
  const Operands x(Dense(16, 24, 192, Dtype::kF32, Dtype::kF32));
  GemmOperands memory = x.memory;
  memory.workspace_bytes = 1000;
  EXPECT_THROW(gemm.Run(gemm.Candidates(16, kWorkspace).at(0).algo, memory, nullptr), std::runtime_error);
}

TEST_F(CublasLt, AnAlgorithmOfAnotherProductIsRefused) {
  const CublasGemm gemm(Dense(16, 24, 192, Dtype::kF32, Dtype::kF32)),
      other(Dense(16, 24, 192, Dtype::kBf16, Dtype::kF32));
  const cublasLtMatmulAlgo_t algorithm = other.Candidates(16, kWorkspace).at(0).algo, none{};
  EXPECT_GE(other.WorkspaceOf(algorithm), 0);
  EXPECT_EQ(gemm.WorkspaceOf(algorithm), -1);
  EXPECT_EQ(gemm.WorkspaceOf(none), -1);
}

}  // namespace
}  // namespace espalier::cuda
