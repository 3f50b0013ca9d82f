// The number of threads of the cpu kernels.
#pragma once

namespace espalier::cpu {

/// Threads a kernel may use; set by SetCpuThreads.
int Threads();

}  // namespace espalier::cpu
