// Writes rows of keys or values to their places in a cache.
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/host_cache_write.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

void CacheWrite(const CacheWriteArgs& a) { WriteCacheOnHost(a); }

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
