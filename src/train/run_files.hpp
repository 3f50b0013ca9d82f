// The files of run.dir that are neither metrics nor checkpoints: `deck.toml` and `done`.
#pragma once

#include <filesystem>
#include <string>

namespace espalier {

/// Removes the file if it exists; if it is a link, the link itself. Throws UserError (kFault).
void RemoveFile(const std::filesystem::path& path);

/// Writes the effective deck to `dir`/deck.toml, unless that file belongs to the user: it is not a regular file, lacks
/// the first line that a run writes, or is `given`, the deck that this run was started with. Then it is left unchanged,
/// and the reason is returned; otherwise "".
std::string WriteEffectiveDeck(const std::filesystem::path& dir, const std::string& text,
                               const std::filesystem::path& given);

}  // namespace espalier
