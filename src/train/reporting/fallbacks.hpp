// Reports ops that run slower than possible (Device::TakeFallbacks).
#pragma once

#include "espalier/comm/world.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// Before the first step: rank 0 warns of the fallbacks of all ranks' programs, each once. Collective.
void AnnounceFallbacks(const Device& device, World& world);

/// After a step: this rank warns of its own fallbacks.
void SayFallbacks(const Device& device, int rank);

}  // namespace espalier
