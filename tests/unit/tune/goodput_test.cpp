// Young's and Daly's intervals, and the goodput of an interval, against published values and drawn failures.
#include "espalier/tune/goodput.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace espalier {
namespace {

constexpr double kMinute = 60, kHour = 3600;

// Daly 2006, figures 3 to 5: saves of 5 minutes.
TEST(Goodput, DalysIntervalIsThePublishedOne) {
  EXPECT_NEAR(DalyIntervalS(5 * kMinute, 24 * kHour) / kMinute, 117, 0.5);
  EXPECT_NEAR(DalyIntervalS(5 * kMinute, 6 * kHour) / kMinute, 57, 0.5);
  EXPECT_NEAR(DalyIntervalS(5 * kMinute, 15 * kMinute) / kMinute, 9.1, 0.05);
}

TEST(Goodput, YoungsIntervalIsTheRootOfTwiceSaveTimesMean) {
  EXPECT_DOUBLE_EQ(YoungIntervalS(5 * kMinute, 24 * kHour), 120 * kMinute);
  EXPECT_DOUBLE_EQ(YoungIntervalS(0, kHour), 0);
}

TEST(Goodput, SavesAsLongAsTheTimeBetweenFailuresLeaveThatTime) {
  EXPECT_DOUBLE_EQ(DalyIntervalS(7, 3), 3);
  EXPECT_NEAR(DalyIntervalS(6 - 1e-9, 3), 6 * (1 + 1. / 3 + 1. / 9) - 6, 1e-6);  // where it is cut off
}

TEST(Goodput, WithoutFailuresOnlySavesCost) {
  EXPECT_NEAR(Goodput({.interval_s = 90, .save_s = 10, .restart_s = 500, .mtbf_s = 1e15}), 0.9, 1e-9);
}

// No interval is better than Daly's by more than 0.05 %.
TEST(Goodput, DalysIntervalIsBest) {
  for (const double mtbf_s : {900., 7200., 86400.})
    for (const double save_s : {0.5, 12., 300.}) {
      const auto at = [&](double interval_s) { return Goodput({interval_s, save_s, 75, mtbf_s}); };
      const double daly_s = DalyIntervalS(save_s, mtbf_s);
      double best = 0;
      for (double factor = 0.2; factor < 5; factor *= 1.01) best = std::max(best, at(factor * daly_s));
      EXPECT_GE(at(daly_s), best * (1 - 5e-4)) << mtbf_s << " " << save_s;
      EXPECT_LT(at(daly_s / 3), at(daly_s));
      EXPECT_LT(at(daly_s * 3), at(daly_s));
    }
}

// Failures drawn one by one: a try of an interval and its save, or of a restart, ends when it or the next failure does.
TEST(Goodput, IsThatOfDrawnFailures) {
  const GoodputQuestion q{.interval_s = 700, .save_s = 40, .restart_s = 160, .mtbf_s = 2500};
  std::mt19937_64 random(7);
  const auto next_failure = [&] { return -q.mtbf_s * std::log((static_cast<double>(random() >> 11) + 1) * 0x1p-53); };
  constexpr int kIntervals = 200'000;
  double wall_s = 0;
  for (int i = 0; i < kIntervals; ++i)
    for (bool done = false; !done;) {
      const double failure_s = next_failure();
      done = failure_s >= q.interval_s + q.save_s;
      wall_s += done ? q.interval_s + q.save_s : failure_s;
      for (bool up = done; !up;) {
        const double again_s = next_failure();
        up = again_s >= q.restart_s;
        wall_s += up ? q.restart_s : again_s;
      }
    }
  EXPECT_NEAR(Goodput(q) / (kIntervals * q.interval_s / wall_s), 1, 0.005);
}

}  // namespace
}  // namespace espalier
