// Writes rows of keys or values to their places in a cache.
#include "kernels/host_cache_write.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void CacheWrite(const CacheWriteArgs& a) { WriteCacheOnHost(a); }

}  // namespace espalier::reference
