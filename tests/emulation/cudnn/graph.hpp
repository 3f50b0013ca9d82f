// From an operation graph's descriptors to a program.
#pragma once

#include "descriptor.hpp"
#include "program.hpp"

namespace espalier::emulation::cudnn {

/// The program of a finalized operation graph. Throws Refusal if it has an operation, a mode, a type or a layout that
/// the emulation does not compute.
Program ProgramOf(const Descriptor& graph);

}  // namespace espalier::emulation::cudnn
