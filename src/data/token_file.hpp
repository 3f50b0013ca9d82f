// The format "tokens": a header of 32 bytes and flat little-endian ids (doc/data.md).
#pragma once

#include <array>
#include <cstdint>

#include "data/input_file.hpp"
#include "espalier/data/token_source.hpp"

namespace espalier {

inline constexpr int64_t kTokenHeaderBytes = 32;
inline constexpr std::array<char, 8> kTokenMagic = {'E', 'S', 'P', 'T', 'O', 'K', '\0', '\1'};

/// The header as it lies in the file.
struct TokenHeader {
  std::array<char, 8> magic = kTokenMagic;
  uint32_t version = 1;
  uint32_t width = 0;
  uint64_t vocab = 0;
  uint64_t count = 0;
};
static_assert(sizeof(TokenHeader) == kTokenHeaderBytes);

struct TokenFile {
  TokenWidth width = TokenWidth::kU16;
  int64_t vocab = 0;
  int64_t count = 0;
};

/// Reads and checks the header of a token file. Throws UserError (kData) saying what is damaged.
TokenFile ReadTokenHeader(const InputFile& file);

}  // namespace espalier
