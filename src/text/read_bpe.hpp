// Reads the model of tokenizer.json.
#pragma once

#include <string>
#include <vector>

#include "text/bpe.hpp"
#include "text/json_reader.hpp"

namespace espalier {

/// The model, and its tokens by name.
struct NamedBpe {
  BpeModel model;
  TokenIds names;
};

/// `bytes`: words are sequences of bytes, written in the alphabet of bytes. Throws UserError (kData) for damaged or
/// unsupported models. `notes` gets unexpected properties, in words for the user.
NamedBpe ReadBpe(const JsonReader& json, bool bytes, std::vector<std::string>& notes);

}  // namespace espalier
