// The name of this machine.
#pragma once

#include <string>

namespace espalier {

/// As the system tells it, cut after 63 characters.
std::string HostName();

}  // namespace espalier
