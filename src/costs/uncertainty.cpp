#include "espalier/costs/uncertainty.hpp"

#include <fmt/core.h>

namespace espalier {
namespace {

struct Span {
  double least, most;
};
constexpr Span kUncalibrated = {0.10, 0.20}, kCalibrated = {-0.05, 0.05};
constexpr Span kWaiting = {-0.03, 0.03};
constexpr double kNone = 0.005;  // a share that is printed as 0 %

bool IsFitted(const Cluster& cluster) { return cluster.efficiency != 1; }

}  // namespace

Uncertainty UncertaintyOfWaiting() {
  return {kWaiting.least, kWaiting.most, "instructions wait as long as the file says: within 3 % is usual"};
}

Uncertainty UncertaintyOf(const Cluster& cluster, double formula_share) {
  const Span& formula = IsFitted(cluster) ? kCalibrated : kUncalibrated;
  const double known = 1 - formula_share;
  Uncertainty u{.least = formula_share * formula.least + known * kCalibrated.least,
                .most = formula_share * formula.most + known * kCalibrated.most};
  if (formula_share < kNone)
    u.reason = "measured times: within 5 % is usual";
  else if (IsFitted(cluster))
    u.reason = fmt::format("software.efficiency = {:g}: within 5 % is usual if it was fitted", cluster.efficiency);
  else if (known < kNone)
    u.reason = "uncalibrated: 10 to 20 % more is usual";
  else
    u.reason =
        fmt::format("{:.0f} % of the time is uncalibrated, of which 10 to 20 % more is usual", 100 * formula_share);
  return u;
}

}  // namespace espalier
