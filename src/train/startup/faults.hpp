// Which faults on purpose a run is to meet, in words.
#pragma once

#include <string>

#include "espalier/comm/world.hpp"

namespace espalier {

/// "step:hold:5 on rank 1, ..." of ESPALIER_FAULT on all ranks, on every rank; empty if no rank has it. Collective.
std::string FaultsOfAll(World& world);

}  // namespace espalier
