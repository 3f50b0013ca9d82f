// The name of this machine.
#pragma once

#include <string>

namespace espalier {

/// As the system tells it, cut after 63 characters.
std::string HostName();

/// Equal in processes that run on one node, those in containers too, and in no others: of this boot of its kernel.
const std::string& NodeKey();

}  // namespace espalier
