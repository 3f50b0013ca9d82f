// Untrusted text on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// The text with '?' for each control character except newline and tab: a terminal would execute them.
std::string PrintableLines(std::string_view text);

}  // namespace espalier
