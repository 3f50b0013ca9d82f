// UTF-8: checks it, and finds the prefix that a stream may print.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace espalier {

/// The offset of the first byte that begins no valid UTF-8 character (no overlong forms, no surrogates, at most
/// U+10FFFF); nothing if `text` is valid.
std::optional<size_t> FindBadUtf8(std::string_view text);

/// Bytes of the character that begins at text[at], at least 1. `text` is valid.
size_t CharacterBytes(std::string_view text, size_t at);

/// Bytes at the end of `text` that begin a character and need more bytes to complete it: 0 to 3.
size_t UnfinishedBytes(std::string_view text);

}  // namespace espalier
