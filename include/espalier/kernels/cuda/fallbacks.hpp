// What runs slower than it could, because a library or the driver refused it.
#pragma once

#include <string>
#include <vector>

namespace espalier::cuda {

/// Notes `text`, unless it was noted before.
void NoteFallback(const std::string& text);

/// What was noted since the last call, in this order.
std::vector<std::string> TakeFallbacks();

/// As if nothing had been noted: for measurements, each of which tells its own.
void ForgetFallbacks();

}  // namespace espalier::cuda
