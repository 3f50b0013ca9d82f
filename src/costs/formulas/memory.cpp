// The time of kernels that only pass over memory.
#include "formulas.hpp"

namespace espalier {

double MemoryUs(const DeviceModel& d, double bytes) {
  if (bytes <= 0 || d.memory_bytes_per_us <= 0) return 0;
  const double share = d.memory_share.empty() ? 1 : At(d.memory_share, bytes);
  return bytes / (d.memory_bytes_per_us * share);
}

}  // namespace espalier
