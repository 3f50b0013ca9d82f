// Counter-based random numbers: every element of a stream is computed separately, so no number depends on the rank.
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace espalier {

/// Ten rounds of Philox4x32 (Salmon et al. 2011, section 4).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// SplitMix64's step and finaliser (Steele, Lea, Flood 2014): a bijection of 64 bits that separates close values.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The key of the stream `name` under `seed`: Mix64(Mix64(seed) ^ FNV-1a-64(name)). Its low word is Philox's key[0].
uint64_t StreamKey(int64_t seed, std::string_view name);

/// Element `element` >= 0 of the stream of standard normals of (seed, name): Box-Muller on block element / 4
/// (to the bit: doc/numerics.md). The same on every machine with IEEE arithmetic.
double NormalAt(int64_t seed, std::string_view name, int64_t element);

/// out[i] = float(std * element first + i) of the stream with StreamKey `key`, i < count. About 100 million per second
/// and core.
void FillNormalRun(float* out, uint64_t key, int64_t first, int64_t count, double std);

}  // namespace espalier
