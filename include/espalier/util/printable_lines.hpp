// Text of strangers on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// The text with '?' for each control character but newline and tab: a terminal would take them for commands.
std::string PrintableLines(std::string_view text);

}  // namespace espalier
