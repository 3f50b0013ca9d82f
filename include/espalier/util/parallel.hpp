// A loop whose iterations run on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace espalier {

/// Calls body(0) .. body(count - 1), each once, on up to `threads` threads (0: one per processor), this one included.
/// Iterations must not depend on each other. If some throw, the exception of the lowest one is thrown after all threads
/// have ended, so the outcome does not depend on their number.
void ParallelFor(size_t count, const std::function<void(size_t)>& body, int threads = 0);

}  // namespace espalier
