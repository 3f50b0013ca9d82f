#include "espalier/report/block.hpp"

#include <fmt/core.h>

namespace espalier {
namespace {

constexpr std::string_view kBold = "\x1b[1m", kBoldYellow = "\x1b[1;33m", kPlain = "\x1b[0m";

std::string Coloured(std::string_view text, std::string_view colour, Colours colours) {
  return colours == Colours::kYes ? fmt::format("{}{}{}", colour, text, kPlain) : std::string(text);
}

}  // namespace

std::string Print(const BlockLine& line, Colours colours) {
  const std::string label = fmt::format("{:<{}}", line.label, kBlockLabel);
  return fmt::format("{} {}\n", Coloured(label, kBold, colours), line.text);
}

std::string PrintWarning(std::string_view text, Colours colours) {
  return fmt::format("{} {}\n", Coloured("warning:", kBoldYellow, colours), text);
}

}  // namespace espalier
