#include "page/chart/scale.hpp"

#include <fmt/core.h>

#include <cmath>

#include "espalier/report/text.hpp"
#include "espalier/svg/ticks.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

Scale::Scale(double low, double high, double from, double to, Kind kind)
    : low_(low), high_(high), from_(from), to_(to), kind_(kind) {
  CHECK(std::isfinite(low) && std::isfinite(high) && low <= high, "an axis from {} to {}", low, high);
  CHECK(kind == Kind::kLinear || low > 0, "a logarithmic axis from {}", low);
  if (low_ < high_) return;
  const double apart = low_ == 0 ? 1 : std::abs(low_) * (kind == Kind::kLinear ? 0.1 : 0.5);
  low_ -= apart;
  high_ += apart;
}

double Scale::At(double value) const {
  const double share =
      kind_ == Kind::kLinear ? (value - low_) / (high_ - low_) : std::log(value / low_) / std::log(high_ / low_);
  return from_ + share * (to_ - from_);
}

std::vector<double> Scale::Ticks(int most) const {
  return kind_ == Kind::kLinear ? RoundValues(low_, high_, most) : RoundPowers(low_, high_, most + 1);
}

std::string TickText(double value) {
  const double size = std::abs(value);
  if (size >= 10000) return HumanCount(value);
  return fmt::format("{:.6g}", value);
}

std::string ValueText(double value) { return fmt::format("{:.6g}", value); }

}  // namespace espalier
