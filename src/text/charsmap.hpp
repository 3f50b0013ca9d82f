// The tables of characters in a SentencePiece model, which its library uses without checks.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// Throws UserError (kData) if the protobuf of a model is malformed or an offset in a table is out of range. Messages
/// call the file `name`. For a model of any size; call it before the library loads the model.
void CheckCharsmaps(const std::string& name, std::string_view model);

}  // namespace espalier
