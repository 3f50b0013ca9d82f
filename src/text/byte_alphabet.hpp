// GPT-2's alphabet of bytes: each byte as a printable character (U+0100 + n for the n-th byte that is not printable).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier {

/// The bytes that `text` spells in the alphabet; nothing if it has another character. `text` is valid UTF-8.
std::optional<std::string> FromByteAlphabet(std::string_view text);

}  // namespace espalier
