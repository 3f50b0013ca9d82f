// The plain op that a joined op (graph/columns.hpp) is equal to.
#pragma once

#include "espalier/ops/op.hpp"

namespace espalier {

/// Makes a joined op the plain one: its joined values become their parts, its neighbours one tensor with
/// the rows of all of them, and `columns` goes. Any other op stays.
void Unjoin(LocalOp& local);

}  // namespace espalier
