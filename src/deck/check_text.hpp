// Text, before its TOML is read.
#pragma once

#include <string>
#include <string_view>

#include "espalier/deck/settings.hpp"

namespace espalier {

/// Reports the first character that is not text; true if there is none. `what` names the kind of file.
bool CheckText(std::string_view text, const std::string& label, std::string_view what, Errors& errors);

}  // namespace espalier
