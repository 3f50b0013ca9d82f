#include "espalier/deck/step_range.hpp"

#include <charconv>

namespace espalier {
namespace {

std::optional<int64_t> PositiveNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return {};
  return value;
}

}  // namespace

std::optional<StepRange> ParseStepRange(std::string_view text) {
  if (text.empty()) return StepRange{};
  const size_t colon = text.find(':');
  if (colon == text.npos) return {};
  const auto first = PositiveNumber(text.substr(0, colon)), last = PositiveNumber(text.substr(colon + 1));
  if (!first || !last || *first > *last) return {};
  return StepRange{*first, *last};
}

}  // namespace espalier
