// The blocks that a run prints at its start and end: lines with a label each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/report/verbosity.hpp"

namespace espalier {

struct BlockLine {
  std::string_view label;  ///< at most kBlockLabel characters
  std::string text;
  Worth worth = Worth::kNormal;
};
using BlockLines = std::vector<BlockLine>;

inline constexpr int kBlockLabel = 10;  ///< width of the column of labels

/// Whether printed text has colour codes.
enum class Colours : uint8_t { kNo, kYes };

/// "model      llama, ..." and a newline.
std::string Print(const BlockLine& line, Colours colours);

/// "warning: TEXT" and a newline.
std::string PrintWarning(std::string_view text, Colours colours);

}  // namespace espalier
