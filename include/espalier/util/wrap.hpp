// Breaks text into lines of bounded width.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// Breaks one line at blanks so that none has more than `width` bytes; all but the first begin with `indent` blanks. A
/// word that is too long for a line has its own line.
std::string Wrap(std::string_view line, size_t width, size_t indent);

}  // namespace espalier
