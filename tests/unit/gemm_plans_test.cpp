// The file of measured GEMMs, and the GEMMs of a deck.
#include "espalier/kernels/gemm_plans.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "espalier/executor/demands.hpp"
#include "espalier/kernels/shapes.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "kernels/cuda/gemm/column_major.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GemmPlans SomePlans() {
  const Gemm forward{{4096, 11008, 2048, 2048, 1, 1, 2048, 11008}, Dtype::kBf16, Dtype::kBf16, false};
  const Gemm gradient{{11008, 2048, 4096, 1, 11008, 2048, 1, 2048}, Dtype::kBf16, Dtype::kF32, true};
  Gemm biased = forward;
  biased.bias = true;
  return {"NVIDIA H200",
          "cuBLASLt 13.1.0",
          {{forward, "00ff", 1024, 250.5, 262.25}, {gradient, "a0", 0, 300, 300}, {biased, "b1", 64, 255, 255}}};
}

/// The message for a text that is refused.
std::string Refusal(const std::string& text) {
  try {
    GemmPlans::Parse(text, "plans.json");
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.messages().at(0);
  }
  ADD_FAILURE() << text << " is read";
  return "";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(GemmPlans, AreReadAsTheyAreWritten) {
  const GemmPlans written = SomePlans(), read = GemmPlans::Parse(written.Text(), "plans.json");
  EXPECT_EQ(read.platform, written.platform);
  ASSERT_EQ(read.entries.size(), written.entries.size());
  for (size_t i = 0; i < read.entries.size(); ++i) {
    EXPECT_EQ(read.entries[i].gemm, written.entries[i].gemm);
    EXPECT_EQ(read.entries[i].algorithm, written.entries[i].algorithm);
    EXPECT_EQ(read.entries[i].workspace_bytes, written.entries[i].workspace_bytes);
    EXPECT_EQ(read.entries[i].microseconds, written.entries[i].microseconds);
    EXPECT_EQ(read.entries[i].first_microseconds, written.entries[i].first_microseconds);
  }
}

TEST(GemmPlans, KnowFp8ByTypesAndScales) {
  const Gemm rows{
      {64, 32, 48, 48, 1, 1, 48, 32}, Dtype::kF8E5M2, Dtype::kF32, true, false, Scales::kRow, Dtype::kF8E4M3};
  Gemm tensors = rows, blocks = rows;
  tensors.scales = Scales::kTensor;
  blocks.scales = Scales::kMx;
  const GemmPlans written{"NVIDIA H200",
                          "cuBLASLt 13.1.0",
                          {{rows, "00ff", 1024, 2.5, 2.5}, {tensors, "a0", 0, 3, 3}, {blocks, "b1", 0, 3, 3}}};
  const GemmPlans read = GemmPlans::Parse(written.Text(), "plans.json");
  EXPECT_EQ(read.Find(rows), &read.entries[0]);
  EXPECT_EQ(read.Find(tensors), &read.entries[1]);
  EXPECT_EQ(read.Find(blocks), &read.entries[2]);
  EXPECT_EQ(ToString(rows), "64 x 32 x 48, f8e5m2 by f8e4m3 (scales by row) -> f32, b transposed, accumulating");
  EXPECT_THAT(Refusal(Replaced(written.Text(), "\"row\"", "\"column\"")), HasSubstr("none of tensor, row and mx"));
}

TEST(GemmPlans, KnowBlocksWithAndWithoutMatricesOfTheirOwn) {
  Gemm strips{{64, 32, 48, 48, 1, 1, 48, 32, 3, 9000, 8000}, Dtype::kBf16, Dtype::kBf16, false}, matrices = strips;
  matrices.shape.b_block = 48 * 32;
  const GemmPlans written{
      "NVIDIA H200", "cuBLASLt 13.1.0", {{strips, "00ff", 1024, 2.5, 2.5}, {matrices, "a0", 0, 3, 3}}};
  const GemmPlans read = GemmPlans::Parse(written.Text(), "plans.json");
  EXPECT_EQ(read.Find(strips), &read.entries[0]);
  EXPECT_EQ(read.Find(matrices), &read.entries[1]);
}

TEST(GemmPlans, OtherMeasurementsInTheFileArePassedOver) {
  const std::string text = Replaced(SomePlans().Text(), "{", "{\"costs\": [1, 2],");
  EXPECT_EQ(GemmPlans::Parse(text, "plans.json").entries.size(), 3u);
}

TEST(GemmPlans, AreFoundByAllOfTheProduct) {
  const GemmPlans plans = SomePlans();
  Gemm gemm = plans.entries[1].gemm;
  EXPECT_EQ(plans.Find(gemm), &plans.entries[1]);
  gemm.accumulate = false;
  EXPECT_EQ(plans.Find(gemm), nullptr);
  gemm = plans.entries[0].gemm;
  gemm.bias = true;
  EXPECT_EQ(plans.Find(gemm), &plans.entries[2]);
  gemm.bias = false;
  gemm.shape.b_row = 11008, gemm.shape.b_column = 1;
  EXPECT_EQ(plans.Find(gemm), nullptr);
}

TEST(GemmPlans, WhatIsWrongWithTheFileIsSaid) {
  const std::string text = SomePlans().Text();
  EXPECT_THAT(Refusal("no json"),
              AllOf(HasSubstr("plans.json: not a file of GEMM plans"), HasSubstr("espalier calibrate")));
  EXPECT_THAT(Refusal("{}"), HasSubstr("espalier_gemm_plans"));
  EXPECT_THAT(Refusal(Replaced(text, "\"espalier_gemm_plans\": 1", "\"espalier_gemm_plans\": 2")),
              HasSubstr("format 2 is not 1"));
  EXPECT_THAT(Refusal(Replaced(text, "\"bf16\"", "\"f16\"")),
              HasSubstr("type f16 is none of f32, bf16, f8e4m3 and f8e5m2"));
  EXPECT_THAT(Refusal(Replaced(text, "\"none\"", "\"gelu\"")),
              HasSubstr("epilogue gelu is none of none, accumulate and bias"));
  EXPECT_THAT(Refusal(Replaced(text, "00ff", "00f")), HasSubstr("algorithm 00f is no hexadecimal number of bytes"));
  EXPECT_THAT(Refusal(Replaced(text, "00ff", "00fg")), HasSubstr("algorithm 00fg"));
  EXPECT_THAT(Refusal(Replaced(text, "\"m\": 4096", "\"m\": \"many\"")), HasSubstr("not a file of GEMM plans"));
  EXPECT_THROW(GemmPlans::Read("/no/such/file.json"), UserError);
  EXPECT_THROW(GemmPlans::Read("/dev/zero"), UserError) << "no file, and without an end";
}

TEST(GemmPlans, OfAnotherGpuOrLibraryAreRefusedWithBothValues) {
  const GemmPlans plans = SomePlans();
  plans.CheckMadeOn({"NVIDIA H200", "cuBLASLt 13.1.0"}, "plans.json");
  const auto refusal = [&](const char* gpu, const char* library) -> std::string {
    try {
      plans.CheckMadeOn({gpu, library}, "plans.json");
    } catch (const UserError& error) {
      return error.messages().at(0);
    }
    return "";
  };
  EXPECT_THAT(refusal("NVIDIA H100 80GB HBM3", "cuBLASLt 13.1.0"),
              HasSubstr("plans.json: made on NVIDIA H200, this is NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(refusal("NVIDIA H200", "cuBLASLt 13.2.0"),
              HasSubstr("made with cuBLASLt 13.1.0, this is cuBLASLt 13.2.0"));
}

TEST(GemmPlans, BytesAsDigits) {
  const std::vector<std::byte> bytes = {std::byte{0}, std::byte{0x0f}, std::byte{0xa5}, std::byte{0xff}};
  EXPECT_EQ(ToHex(bytes), "000fa5ff");
  EXPECT_EQ(FromHex("000fa5ff"), bytes);
}

std::vector<GemmDemand> ProductsOfDeck(const std::string& layout, std::vector<std::string> more) {
  std::vector<std::string> overrides = DegreesOf(layout);
  overrides.insert(overrides.end(), more.begin(), more.end());
  const Compilation c = Compile(SmallDeck(overrides), RanksOf(layout), Purpose::kTrain);
  std::vector<GemmDemand> all;
  for (int rank = 0; rank < c.mesh.Ranks(); ++rank) {
    const Coordinate coordinate = c.mesh.CoordinateOf(rank);
    for (const GemmDemand& demand : GemmsOf(MakeProgram(c, coordinate), coordinate)) all.push_back(demand);
  }
  return Distinct(all);
}

TEST(GemmDemands, AreEveryGemmOfADeckOnce) {
  const auto demands = ProductsOfDeck("111", {"run.device=cuda"});
  std::set<Gemm> gemms;
  int transposed = 0, accumulating = 0;
  for (const GemmDemand& demand : demands) {
    EXPECT_TRUE(gemms.insert(demand.gemm).second) << ToString(demand.gemm);
    EXPECT_GT(demand.workspace_bytes, 0) << ToString(demand.gemm);
    EXPECT_EQ(demand.gemm.output, demand.gemm.shape.a_column == 1 ? demand.gemm.input : Dtype::kF32);
    transposed += demand.gemm.shape.a_column != 1;
    accumulating += demand.gemm.accumulate;
  }
  EXPECT_GT(transposed, accumulating) << "the first microbatch overwrites";
  EXPECT_GT(accumulating, 0);
}

TEST(GemmDemands, AreLocalShards) {
  int64_t widest = 0, narrow = 0;
  for (const GemmDemand& demand : ProductsOfDeck("111", {"run.device=cuda"}))
    widest = std::max(widest, demand.gemm.shape.n);
  for (const GemmDemand& demand : ProductsOfDeck("112", {"run.device=cuda"}))
    narrow = std::max(narrow, demand.gemm.shape.n);
  EXPECT_EQ(widest, 2 * narrow);
}

TEST(GemmDemands, OfMuonHaveAMatrixForEachExpert) {
  std::set<int64_t> blocks;
  for (const GemmDemand& demand :
       ProductsOfDeck("121", {"run.device=cuda", "optimizer.name=muon", "experts.count=6", "experts.ffn_dim=23"})) {
    const GemmShape& s = demand.gemm.shape;
    blocks.insert(s.blocks);
    if (s.blocks == 1) continue;
    EXPECT_EQ(s.a_block, s.m * s.k) << ToString(demand.gemm);
    EXPECT_EQ(s.b_block, s.k * s.n) << ToString(demand.gemm);
    EXPECT_EQ(s.c_block, s.m * s.n) << ToString(demand.gemm);
    EXPECT_GT(demand.workspace_bytes, 0) << ToString(demand.gemm);
  }
  EXPECT_EQ(blocks, std::set<int64_t>({1, 3}));
}

TEST(GemmDemands, NeedNoWorkspaceOnProcessors) {
  for (const GemmDemand& demand : ProductsOfDeck("111", {"run.device=cpu"})) EXPECT_EQ(demand.workspace_bytes, 0);
}

/// Where a column-major library finds element (i, j) of an operand after its transposition.
int64_t OffsetIn(const cuda::ColumnMajor& x, int64_t i, int64_t j) {
  return x.transposed ? j + i * x.leading : i + j * x.leading;
}

void ExpectSameElements(const GemmShape& s) {
  const cuda::ColumnMajor b = cuda::FirstOperand(s), a = cuda::SecondOperand(s), c = cuda::ResultOf(s);
  for (const cuda::ColumnMajor& x : {a, b, c})
    ASSERT_GE(x.leading, x.rows) << "a column is longer than the way to the next";
  for (int64_t p = 0; p < s.k; ++p) {
    for (int64_t j = 0; j < s.n; ++j) ASSERT_EQ(OffsetIn(b, j, p), p * s.b_row + j * s.b_column);
    for (int64_t i = 0; i < s.m; ++i) ASSERT_EQ(OffsetIn(a, p, i), i * s.a_row + p * s.a_column);
  }
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) ASSERT_EQ(OffsetIn(c, j, i), i * s.c_row + j);
}

TEST(ColumnMajor, NamesTheSameElementsForAllLetterings) {
  const auto expect = [](const char* spec, Shape a, Shape b, Shape c) {
    const std::vector<Tensor> in = {{nullptr, Dtype::kF32, a, {}}, {nullptr, Dtype::kF32, b, {}}},
                              out = {{nullptr, Dtype::kF32, c, {}}};
    const Attributes attributes{{}, {{"spec", spec}}};
    SCOPED_TRACE(std::string(spec) + " " + ToString(a) + ToString(b));
    ExpectSameElements(GemmOf({.inputs = in, .outputs = out, .attributes = &attributes}).shape);
  };
  for (int64_t s : {1, 2, 5})
    for (int64_t n : {1, 3, 4})
      for (int64_t k : {1, 2, 7}) {
        expect("bsk,nk->bsn", {1, s, k}, {n, k}, {1, s, n});
        expect("bsn,nk->bsk", {1, s, n}, {n, k}, {1, s, k});
        expect("bsn,bsk->nk", {1, s, n}, {1, s, k}, {n, k});
        expect("bsk,kn->bsn", {1, s, k}, {k, n}, {1, s, n});
        expect("bsn,kn->bsk", {1, s, n}, {k, n}, {1, s, k});
        expect("bsk,bsn->kn", {1, s, k}, {1, s, n}, {k, n});
        expect("nbs,kbs->nk", {n, 1, s}, {k, 1, s}, {n, k});
        expect("kbs,nbs->kn", {k, 1, s}, {n, 1, s}, {k, n});
        expect("esk,enk->esn", {3, s, k}, {3, n, k}, {3, s, n});
        expect("esk,ekn->esn", {3, s, k}, {3, k, n}, {3, s, n});
        expect("esk,esn->ekn", {3, s, k}, {3, s, n}, {3, k, n});
      }
}

}  // namespace
}  // namespace espalier
