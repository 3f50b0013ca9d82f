// Cuts boxes out of a tensor, and puts them into a larger one.
#include "kernels/host_slice.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Slice(const SliceArgs& a) { SliceOnHost(a); }
void Pad(const PadArgs& a) { PadOnHost(a); }
void TakeRows(const TakeRowsArgs& a) { SliceOnHost({a}); }
void PutRows(const PutRowsArgs& a) { SliceOnHost({a}); }

}  // namespace espalier::reference
