// Costs from measured tables, by hand.
#include "costs/interpolate.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "costs/kernel_key.hpp"

namespace espalier {
namespace {

const std::string kVariant = "f32,f32->f32 spec=bsk,nk->bsn";

KernelKey Key(int64_t m, int64_t k, int64_t n) { return {OpKind::kMatmul, kVariant, {m, k, n}}; }

/// One nanosecond per multiplication.
double Formula(const LocalOp& op, bool) {
  return 1e-3 * static_cast<double>(op.inputs[0][0] * op.inputs[0][1] * op.inputs[0][2] * op.inputs[1][0]);
}

std::optional<Cost> CostOf(const CostTable& table, const KernelKey& key) {
  const RebuiltOp op = *Rebuild(key);
  return MeasuredKernel(table, op.Local(), op.accumulate, Formula);
}

TEST(MeasuredKernels, AreTakenAsTheyAre) {
  const CostTable table{{{Key(8, 8, 8), {3.25, 5}}}, {}};
  const auto cost = CostOf(table, Key(8, 8, 8));
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->us, 3.25);
  EXPECT_EQ(cost->source, CostSource::kMeasured);
}

// A neighbour at twice the distance counts half.
TEST(MeasuredKernels, InterpolateBetweenNeighbours) {
  CostTable table;
  table.kernels[Key(16, 64, 64)] = {2 * Formula(Rebuild(Key(16, 64, 64))->Local(), false), 1};
  table.kernels[Key(128, 64, 64)] = {5 * Formula(Rebuild(Key(128, 64, 64))->Local(), false), 1};
  const auto cost = CostOf(table, Key(32, 64, 64));
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->source, CostSource::kInterpolated);
  EXPECT_NEAR(cost->us, 3 * 1e-3 * 32 * 64 * 64, 1e-9);  // (2 x 2 + 5) / 3 of the formula
  EXPECT_EQ(CostOf(table, Key(32, 64, 64))->us, cost->us);
}

TEST(MeasuredKernels, TheNearestFewCount) {
  CostTable table;
  for (int64_t m : {20, 24, 40, 48}) table.kernels[Key(m, 64, 64)] = {1e-3 * 64 * 64 * double(m), 1};
  table.kernels[Key(200, 64, 64)] = {1e6, 1};
  EXPECT_NEAR(CostOf(table, Key(32, 64, 64))->us, 1e-3 * 32 * 64 * 64, 1e-9);
}

TEST(MeasuredKernels, FarRowsDoNotCount) {
  CostTable table;
  table.kernels[Key(64, 64, 64)] = {100, 1};
  EXPECT_TRUE(CostOf(table, Key(128, 64, 64)));
  EXPECT_TRUE(CostOf(table, Key(32, 64, 64)));
  EXPECT_FALSE(CostOf(table, Key(129, 64, 64)));  // beyond the range by more than kBeyondFactor
  EXPECT_FALSE(CostOf(table, Key(31, 64, 64)));
  table.kernels[Key(64 * 64, 64, 64)] = {100, 1};
  EXPECT_TRUE(CostOf(table, Key(64 * 8, 64, 64)));  // 8 times either neighbour
  EXPECT_FALSE(CostOf(table, Key(64 * 8, 64, 63 * 8)));
  EXPECT_FALSE(CostOf(table, {OpKind::kMatmul, kVariant + " accumulate", {64, 64, 64}}));
  EXPECT_FALSE(CostOf({}, Key(64, 64, 64)));
}

const GroupPlace kPlace{4, 2, 2};

CostTable Transfers(std::map<int64_t, Measured> points) {
  return {{}, {{{OpKind::kAllGather, kPlace}, std::move(points)}}};
}

Cost TransferOf(const CostTable& table, int64_t bytes) {
  return *MeasuredTransfer(table, OpKind::kAllGather, kPlace, bytes,
                           [](int64_t b) { return 1 + static_cast<double>(b); });
}

TEST(MeasuredTransfers, AreLinesBetweenPoints) {
  const CostTable table = Transfers({{100, {10, 1}}, {200, {30, 1}}, {400, {40, 1}}});
  EXPECT_EQ(TransferOf(table, 100).us, 10);
  EXPECT_EQ(TransferOf(table, 100).source, CostSource::kMeasured);
  EXPECT_EQ(TransferOf(table, 150).us, 20);
  EXPECT_EQ(TransferOf(table, 150).source, CostSource::kInterpolated);
  EXPECT_EQ(TransferOf(table, 300).us, 35);
  EXPECT_EQ(TransferOf(table, 1).us, 10);
  EXPECT_EQ(TransferOf(table, 700).us, 70);  // 30 us over 300 bytes, steeper than the last 10 over 200
  const auto other = [&](OpKind kind, GroupPlace place) {
    return MeasuredTransfer(table, kind, place, 100, [](int64_t) { return 1.0; });
  };
  EXPECT_FALSE(other(OpKind::kReduceScatter, kPlace));
  EXPECT_FALSE(other(OpKind::kAllGather, {4, 1, 4}));
}

TEST(MeasuredTransfers, OnePointScalesTheFormula) {
  const CostTable table = Transfers({{99, {10, 1}}});
  EXPECT_DOUBLE_EQ(TransferOf(table, 199).us, 20);
  EXPECT_EQ(TransferOf(table, 199).source, CostSource::kInterpolated);
}

// Noise may make a larger message faster; costs still rise with bytes.
TEST(MeasuredTransfers, RiseWithBytes) {
  const CostTable table = Transfers({{10, {9, 1}}, {100, {4, 1}}, {1000, {20, 1}}, {2000, {19, 1}}});
  double before = 0;
  for (int64_t bytes = 0; bytes < 5000; bytes += 7) {
    const double us = TransferOf(table, bytes).us;
    EXPECT_GE(us, before) << bytes;
    before = us;
  }
  EXPECT_GT(before, 20);
}

}  // namespace
}  // namespace espalier
