// What a run leaves in run.dir for people and scripts, beside metrics and checkpoints: `deck.toml` and `done`.
#pragma once

#include <filesystem>
#include <string>

namespace espalier {

/// Makes `path` a file of this text by one rename: a reader finds the old file or the new one, and a link of that name
/// is replaced, not followed. Throws UserError (kFault).
void WriteWhole(const std::filesystem::path& path, const std::string& text);

/// Removes the file, if there is one; a link, not what it names. Throws UserError (kFault).
void RemoveFile(const std::filesystem::path& path);

/// Writes the effective deck to `dir`/deck.toml, unless what is there is somebody's own: no regular file, one without
/// a run's first line, or `given`, the deck that this run was started with. Then it stays, and the reason is returned.
std::string WriteEffectiveDeck(const std::filesystem::path& dir, const std::string& text,
                               const std::filesystem::path& given);

}  // namespace espalier
