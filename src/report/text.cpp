#include "espalier/report/text.hpp"

#include <fmt/core.h>

#include <array>
#include <cctype>
#include <cmath>
#include <string_view>

namespace espalier {
namespace {

/// Three significant digits of a value below 1000, or below 1024 if the unit is binary.
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

std::string Counted(int64_t count, std::string_view thing) {
  constexpr int64_t kExact = 1'000'000;
  const std::string number = std::abs(count) < kExact ? std::to_string(count) : HumanCount(static_cast<double>(count));
  return fmt::format("{} {}{}", number, thing, count == 1 ? "" : thing.ends_with("ch") ? "es" : "s");
}

std::string ExactCount(int64_t count) {
  const auto x = static_cast<double>(count);
  if (x >= 1e12) return fmt::format("{} ({:.4g} T)", count, x / 1e12);
  if (x >= 1e9) return fmt::format("{} ({:.4g} B)", count, x / 1e9);
  return fmt::format("{} ({:.4g} M)", count, x / 1e6);
}

std::string HumanFlops(double flops) {
  std::string text = HumanCount(flops);  // "5.01M"
  const std::string unit =
      std::isalpha(static_cast<unsigned char>(text.back())) != 0 ? text.substr(text.size() - 1) : "";
  text.resize(text.size() - unit.size());
  return fmt::format("{} {}FLOP", text, unit);
}

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  constexpr double kCounted = 1e15;  // limit of the seconds that are shown
  if (seconds >= kCounted) return fmt::format("{:.3g}d", seconds / kDay);
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < kMinute) return fmt::format("{}s", s);
  if (s < kHour) return fmt::format("{}m{:02}s", s / kMinute, s % kMinute);
  if (s < kDay) return fmt::format("{}h{:02}m", s / kHour, s % kHour / kMinute);
  return fmt::format("{}d{:02}h", s / kDay, s % kDay / kHour);
}

}  // namespace espalier
