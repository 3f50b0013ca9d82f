// The order of a sequence under context parallelism. It is split into 2 cp chunks, and rank r of cp holds chunks r and
// 2 cp - 1 - r, in this order: an early chunk, whose queries see few keys, and a late one, which balances causal
// attention over the ranks.
#pragma once

#include <cstdint>

namespace espalier {

/// True position of the element at `index` of a reordered sequence of `length`, a multiple of 2 cp; cp = 1 reorders
/// nothing.
constexpr int64_t ZigzagPosition(int64_t index, int64_t length, int64_t cp) {
  if (cp == 1) return index;
  const int64_t chunk = length / (2 * cp), rank = index / (2 * chunk), within = index % (2 * chunk);
  return within < chunk ? rank * chunk + within : (2 * cp - 1 - rank) * chunk + within - chunk;
}

}  // namespace espalier
