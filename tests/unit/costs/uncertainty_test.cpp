// Ranges of predicted times.
#include "espalier/costs/uncertainty.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Uncertainty, FormulasAreTenToTwentyPerCentFast) {
  const Uncertainty u = UncertaintyOf({}, 1);
  EXPECT_DOUBLE_EQ(u.least, 0.10);
  EXPECT_DOUBLE_EQ(u.most, 0.20);
  EXPECT_EQ(u.reason, "uncalibrated: 10 to 20 % more is usual");
  const TimeRange range = RangeOf(50, u);
  EXPECT_DOUBLE_EQ(range.least, 55);
  EXPECT_DOUBLE_EQ(range.most, 60);
}

TEST(Uncertainty, MeasuredTimesAreWithinFivePerCent) {
  const Uncertainty u = UncertaintyOf({}, 0);
  EXPECT_DOUBLE_EQ(u.least, -0.05);
  EXPECT_DOUBLE_EQ(u.most, 0.05);
  EXPECT_EQ(u.reason, "measured times: within 5 % is usual");
}

TEST(Uncertainty, SharesOfBothAreWeighed) {
  const Uncertainty u = UncertaintyOf({}, 0.4);
  EXPECT_DOUBLE_EQ(u.least, 0.4 * 0.10 - 0.6 * 0.05);
  EXPECT_DOUBLE_EQ(u.most, 0.4 * 0.20 + 0.6 * 0.05);
  EXPECT_EQ(u.reason, "40 % of the time is uncalibrated, of which 10 to 20 % more is usual");
}

TEST(Uncertainty, AFittedEfficiencyCalibratesFormulas) {
  Cluster cluster;
  cluster.efficiency = 0.81;
  const Uncertainty u = UncertaintyOf(cluster, 1);
  EXPECT_DOUBLE_EQ(u.least, -0.05);
  EXPECT_DOUBLE_EQ(u.most, 0.05);
  EXPECT_EQ(u.reason, "software.efficiency = 0.81: within 5 % is usual if it was fitted");
}

}  // namespace
}  // namespace espalier
