#include "espalier/deck/time_limit.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

namespace espalier {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 62;

/// A number of one to six digits, below `limit`; nothing for any other text.
std::optional<int64_t> Number(std::string_view text, int64_t limit) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || text.size() > 6 || !std::ranges::all_of(text, digit)) return {};
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value < limit ? std::optional(value) : std::nullopt;
}

/// Seconds of numbers with colons between them; the first counts in units of `units[0]` seconds, and so on. Nothing if
/// there are more numbers than units.
std::optional<int64_t> Clock(std::string_view text, std::span<const int64_t> units, int64_t first_limit) {
  int64_t seconds = 0;
  for (int64_t limit = first_limit;; limit = 60) {
    const size_t colon = std::min(text.find(':'), text.size());
    const auto number = Number(text.substr(0, colon), limit);
    if (!number || units.empty()) return {};
    seconds += *number * units[0];
    if (colon == text.size()) return seconds;
    text.remove_prefix(colon + 1);
    units = units.subspan(1);
  }
}

/// "90s", "30m", "1h", "2d".
std::optional<int64_t> WithUnit(std::string_view text) {
  constexpr std::array<std::pair<char, int64_t>, 4> kUnits = {{{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}}};
  for (const auto& [letter, seconds] : kUnits)
    if (text.ends_with(letter))
      if (const auto number = Number(text.substr(0, text.size() - 1), kNoLimit)) return *number * seconds;
  return {};
}

std::optional<int64_t> AnySeconds(std::string_view text) {
  constexpr std::array<int64_t, 4> kUnits = {86400, 3600, 60, 1};
  const std::span<const int64_t> units(kUnits);
  if (const size_t dash = text.find('-'); dash != text.npos) {
    const auto days = Number(text.substr(0, dash), kNoLimit), rest = Clock(text.substr(dash + 1), units.subspan(1), 24);
    return days && rest ? std::optional(*days * 86400 + *rest) : std::nullopt;
  }
  if (const auto seconds = WithUnit(text)) return seconds;
  // Slurm's units begin with minutes: 90 is an hour and a half, 90:30 half a minute more; three numbers begin with
  // hours.
  return Clock(text, units.subspan(std::ranges::count(text, ':') == 2 ? 1 : 2), kNoLimit);
}

}  // namespace

std::optional<int64_t> TimeLimitSeconds(std::string_view text) {
  const auto seconds = AnySeconds(text);
  return seconds && *seconds > 0 ? seconds : std::nullopt;
}

}  // namespace espalier
