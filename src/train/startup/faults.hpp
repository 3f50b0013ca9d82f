// Faults requested by ESPALIER_FAULT, for tests.
#pragma once

#include <string>

#include "espalier/comm/world.hpp"

namespace espalier {

/// "step:hold:5 on rank 1, ...": ESPALIER_FAULT of all ranks, on every rank; empty if no rank has it. Rank 0 warns of
/// it. Collective.
std::string AnnounceFaults(World& world);

}  // namespace espalier
