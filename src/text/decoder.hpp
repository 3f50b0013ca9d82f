// The text of a token, by the decoder of tokenizer.json.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "text/json_reader.hpp"

namespace espalier {

struct Decoder {
  std::function<std::string(const std::string& token)> text_of;  ///< the text of a token
  size_t strip_spaces = 0;                                       ///< removed at the start of a text
};

/// Throws UserError (kData) for an unsupported decoder.
Decoder ReadDecoder(const JsonReader& json);

}  // namespace espalier
