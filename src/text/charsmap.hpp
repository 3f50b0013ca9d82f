// The tables of characters in a SentencePiece model, which its library follows without checks.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// Throws UserError (kData) if the message of a model cannot be walked, or a table in it leads out of itself. Messages
/// call the file `name`. For a model of any size; to be called before the library loads it.
void CheckCharsmaps(const std::string& name, std::string_view model);

}  // namespace espalier
