#include "page/sections/numbers.hpp"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

#include "espalier/report/text.hpp"

namespace espalier {

std::vector<double> FiniteOf(const StepColumns& steps, std::string_view name) {
  std::vector<double> finite;
  for (const double value : steps.Column(name))
    if (std::isfinite(value)) finite.push_back(value);
  return finite;
}

double SumOf(const StepColumns& steps, std::string_view name) {
  const std::vector<double> values = FiniteOf(steps, name);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::string DateText(double seconds) {
  constexpr double kYear9999 = 253402300799;
  if (!(seconds >= 0 && seconds <= kYear9999)) return kUnknown;
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string NineDigits(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : kUnknown; }

std::string MillisecondsText(double ms) {
  if (!std::isfinite(ms)) return kUnknown;
  if (ms >= 60e3) return HumanDuration(ms * 1e-3);
  const bool seconds = ms >= 1000;
  const double value = seconds ? ms * 1e-3 : ms;
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, seconds ? "s" : "ms");
}

std::string PercentText(double share) { return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : kUnknown; }

std::string Count(int64_t number, const std::string& word) {
  return fmt::format("{} {}{}", number, word, number == 1 ? "" : "s");
}

}  // namespace espalier
