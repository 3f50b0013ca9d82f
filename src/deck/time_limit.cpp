#include "espalier/deck/time_limit.hpp"

#include <algorithm>
#include <charconv>

namespace espalier {
namespace {

/// A number of `least` to `most` digits; nothing for any other text.
std::optional<int64_t> Digits(std::string_view text, size_t least, size_t most) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.size() < least || text.size() > most || !std::ranges::all_of(text, digit)) return {};
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::optional<int64_t> TimeLimitSeconds(std::string_view text) {
  if (text.size() < 7 || text[text.size() - 3] != ':' || text[text.size() - 6] != ':') return {};
  const auto hours = Digits(text.substr(0, text.size() - 6), 1, 6);
  const auto minutes = Digits(text.substr(text.size() - 5, 2), 2, 2), seconds = Digits(text.substr(text.size() - 2), 2, 2);
  if (!hours || !minutes || !seconds || *minutes > 59 || *seconds > 59) return {};
  const int64_t all = (*hours * 60 + *minutes) * 60 + *seconds;
  return all > 0 ? std::optional(all) : std::nullopt;
}

}  // namespace espalier
