// The header of the format "tokens" (doc/data.md).
#pragma once

#include <array>
#include <cstdint>

namespace espalier {

inline constexpr int64_t kTokenHeaderBytes = 32;
inline constexpr std::array<char, 8> kTokenMagic = {'E', 'S', 'P', 'T', 'O', 'K', '\0', '\1'};

/// As in the file.
struct TokenHeader {
  std::array<char, 8> magic = kTokenMagic;
  uint32_t version = 1;
  uint32_t width = 0;
  uint64_t vocab = 0;
  uint64_t count = 0;
};
static_assert(sizeof(TokenHeader) == kTokenHeaderBytes);

}  // namespace espalier
