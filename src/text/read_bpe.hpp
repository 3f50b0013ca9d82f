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

/// `bytes`: words are bytes, which tokens spell in the alphabet of bytes. Throws UserError (kData) for what is damaged
/// or not supported. `notes` gets what differs from what one would expect, in words for the user.
NamedBpe ReadBpe(const JsonReader& json, bool bytes, std::vector<std::string>& notes);

}  // namespace espalier
