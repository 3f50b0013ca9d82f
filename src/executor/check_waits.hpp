#pragma once

#include "espalier/program/instruction.hpp"

namespace espalier {

/// Proves that all lanes of a program, each in order, reach their ends on this rank if every message arrives. Throws
/// InvariantError that names an instruction that never starts, and the missing wait.
void CheckWaits(const Program& program);

}  // namespace espalier
