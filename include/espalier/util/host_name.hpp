// The name of this machine.
#pragma once

#include <string>

namespace espalier {

/// From the system, truncated to 63 characters.
std::string HostName();

/// Equal in all processes on one node, including containers, and in no others: identifies the boot of its kernel.
const std::string& NodeKey();

}  // namespace espalier
