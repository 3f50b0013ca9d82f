// How commands refuse wrong arguments.
#pragma once

#include <string>

#include "espalier/util/error.hpp"

namespace espalier {

[[noreturn]] inline void Refuse(const std::string& why) { throw UserError(ExitStatus::kDeck, "command line: " + why); }

}  // namespace espalier
