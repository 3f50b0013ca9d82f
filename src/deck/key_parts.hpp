// Number of names in a dotted key, before the TOML library sees it.
#pragma once

#include <string_view>

namespace espalier {

/// No key of a deck has more names.
inline constexpr int kMaxKeyParts = 8;
inline constexpr std::string_view kLongKey = "a key of more than 8 names";

/// The line of the first dotted key of more than kMaxKeyParts names, from 1; 0: none. The library makes a table in a
/// table for each name, and runs out of stack when it destroys many thousands of them. Correct up to the first error of
/// a text, where the library stops too.
int LineOfLongKey(std::string_view toml);

}  // namespace espalier
