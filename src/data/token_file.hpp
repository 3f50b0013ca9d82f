// The format "tokens": a header of 32 bytes and flat little-endian ids (doc/data.md).
#pragma once

#include <cstdint>

#include "data/input_file.hpp"
#include "espalier/data/token_source.hpp"

namespace espalier {

inline constexpr int64_t kTokenHeaderBytes = 32;

struct TokenFile {
  TokenWidth width = TokenWidth::kU16;
  int64_t vocab = 0;
  int64_t count = 0;
};

/// Reads and checks the header of a token file. Throws UserError (kData) saying what is damaged.
TokenFile ReadTokenHeader(const InputFile& file);

}  // namespace espalier
