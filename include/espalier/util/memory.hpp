// Memory of this node and of this process, as the system tells it.
#pragma once

#include <cstdint>

namespace espalier {

/// Bytes that new buffers can take without swapping or being ended: what the node has available, within the limit of the
/// control group. The largest number if the system does not say.
int64_t AvailableMemory();

/// Resident memory of this process at its highest, in bytes; 0 if the system does not say.
int64_t PeakResidentMemory();

}  // namespace espalier
