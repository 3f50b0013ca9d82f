#include "espalier/report/text.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace espalier {
namespace {

/// Three significant digits of a value below 1000, or below 1024 where the unit is binary.
std::string ThreeDigits(double x) { return fmt::format("{:.{}f}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0); }

template <size_t N>
std::string Scaled(double x, double base, const std::array<std::string_view, N>& units) {
  size_t unit = 0;
  // A value that rounds up to the next unit is written in that unit.
  while (unit + 1 < N && x >= base - 0.5) {
    x /= base;
    ++unit;
  }
  return ThreeDigits(x) + std::string(units[unit]);
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> kUnits = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  return Scaled(static_cast<double>(bytes) / 1024, 1024, kUnits);
}

std::string HumanCount(double count) {
  if (!std::isfinite(count)) return "-";
  if (std::abs(count) < 999.5) return fmt::format("{:.0f}", count);
  constexpr std::array<std::string_view, 6> kUnits = {"k", "M", "G", "T", "P", "E"};
  return (count < 0 ? "-" : "") + Scaled(std::abs(count) / 1000, 1000, kUnits);
}

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < kMinute) return fmt::format("{}s", s);
  if (s < kHour) return fmt::format("{}m{:02}s", s / kMinute, s % kMinute);
  if (s < kDay) return fmt::format("{}h{:02}m", s / kHour, s % kHour / kMinute);
  return fmt::format("{}d{:02}h", s / kDay, s % kDay / kHour);
}

}  // namespace espalier
