// GPT-2's alphabet of bytes: each byte is represented by a printable character (U+0100 + n for the n-th unprintable
// byte).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier {

/// The bytes that `text` represents in the alphabet; nothing if it has another character. `text` is valid UTF-8.
std::optional<std::string> FromByteAlphabet(std::string_view text);

}  // namespace espalier
