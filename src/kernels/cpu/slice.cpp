// Cuts boxes out of a tensor, and puts them into a larger one.
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/host_slice.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

void Slice(const SliceArgs& a) { SliceOnHost(a); }
void Pad(const PadArgs& a) { PadOnHost(a); }
void TakeRows(const TakeRowsArgs& a) { SliceOnHost({a}); }
void PutRows(const PutRowsArgs& a) { SliceOnHost({a}); }

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
