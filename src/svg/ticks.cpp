#include "espalier/svg/ticks.hpp"

#include <cmath>

namespace espalier {
namespace {

constexpr double kRoundingError = 1e-9;  // relative

/// Multiples by `factors` of every `stride`th power of ten within [begin, end].
std::vector<double> Powers(double begin, double end, int stride, const std::vector<double>& factors) {
  std::vector<double> values;
  for (int power = static_cast<int>(std::floor(std::log10(begin))); std::pow(10, power) <= end * (1 + kRoundingError);
       ++power)
    for (const double factor : factors) {
      const double value = factor * std::pow(10, power);
      if (power % stride == 0 && value >= begin * (1 - kRoundingError) && value <= end * (1 + kRoundingError))
        values.push_back(value);
    }
  return values;
}

}  // namespace

double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - kRoundingError)) return factor * power;
  return 10 * power;
}

std::vector<double> RoundValues(double begin, double end, int most) {
  std::vector<double> values;
  if (end <= begin) return values;
  const double step = RoundStep((end - begin) / most);
  for (double n = std::ceil(begin / step - kRoundingError) + 0.0; n * step <= end + step * kRoundingError; ++n)
    values.push_back(n * step);
  return values;
}

std::vector<double> RoundPowers(double begin, double end, int most) {
  std::vector<double> values = Powers(begin, end, 1, {1, 2, 5});
  for (int stride = 1; std::ssize(values) > most; ++stride) values = Powers(begin, end, stride, {1});
  return values;
}

}  // namespace espalier
