// Decks and cluster files that are shipped with the program are found by their names from any folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier {

/// The file that `name` means: the path itself, else "llama/tiny.toml" or "inputs/llama/tiny.toml" of the clone or
/// installation of this executable, else of $ESPALIER_ROOT. Nothing if there is none.
std::optional<std::string> FindInput(const std::string& name);

/// The shipped deck of this name, with or without a folder and its ending: "tiny" is "llama/tiny.toml". Empty if there
/// is none.
std::string ShippedDeckNamed(std::string_view word);

/// For a missing deck: the places searched besides the working directory, and what may have been meant: ", here or in
/// PREFIX/share/espalier/inputs (did you mean llama/tiny.toml?)".
std::string WhereElse(const std::string& name);

}  // namespace espalier
