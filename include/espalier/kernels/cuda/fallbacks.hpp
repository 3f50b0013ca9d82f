// Operations that run slower than possible because a library or the driver refused the faster way.
#pragma once

#include <string>
#include <vector>

namespace espalier::cuda {

/// Notes `text`, unless it was noted before.
void NoteFallback(const std::string& text);

/// The notes since the last call, in order.
std::vector<std::string> TakeFallbacks();

/// Clears the notes: each measurement notes its own.
void ForgetFallbacks();

}  // namespace espalier::cuda
