// Files of text, before their TOML is read.
#pragma once

#include <optional>
#include <string>

#include "espalier/deck/settings.hpp"

namespace espalier {

/// The file; nothing, and why, if it cannot be read or is too large.
std::optional<std::string> ReadTextFile(const std::string& path, const SettingsFormat& format, std::string& why);

/// "1 MiB: not a deck".
std::string TextLimit(const SettingsFormat& format);

/// Reports the first character that no text has; true if there is none. `what` names the kind of file.
bool CheckText(std::string_view text, const std::string& label, std::string_view what, Errors& errors);

}  // namespace espalier
