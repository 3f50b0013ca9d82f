// The parts of a reshard that need no communication: a shard cut out of a replicated value, and its adjoint.
#include "ops.hpp"

namespace espalier {

OpDefinition Slice() { return Moving(OpKind::kSlice, "this rank's shard of a replicated value; no communication"); }
OpDefinition Pad() {
  return Moving(OpKind::kPad, "a shard as a partial value: nothing to add outside it; no communication");
}

}  // namespace espalier
