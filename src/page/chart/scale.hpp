// Maps values to pixels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier {

/// A linear or logarithmic axis.
class Scale {
 public:
  enum class Kind : uint8_t { kLinear, kLogarithmic };
  /// `low` is at pixel `from`, `high` at pixel `to`. If they are equal, both are moved apart. A logarithmic axis has
  /// positive bounds.
  Scale(double low, double high, double from, double to, Kind kind = Kind::kLinear);

  double At(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  /// About `most` round values.
  std::vector<double> Ticks(int most) const;

 private:
  double low_, high_, from_, to_;
  Kind kind_;
};

/// A value at an axis: "0.05", "250", "12.5k", "2e-05".
std::string TickText(double value);

/// Six significant digits: "5.56851", "11700.4".
std::string ValueText(double value);

}  // namespace espalier
