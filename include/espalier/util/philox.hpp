// Counter-based random numbers: every element of a stream is computed separately, so no number depends on the rank.
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace espalier {

/// A block of Philox4x32.
struct PhiloxWords {
  uint32_t x0, x1, x2, x3;
};

inline constexpr uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u, kPhiloxWeyl0 = 0x9E3779B9u,
                          kPhiloxWeyl1 = 0xBB67AE85u;

/// Ten rounds of Philox4x32 (Salmon et al. 2011, section 4) under the key (k0, k1). Kernels inline it, on GPUs too.
__attribute__((always_inline)) constexpr PhiloxWords TenRounds(PhiloxWords c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxFactor0} * c.x0, p1 = uint64_t{kPhiloxFactor1} * c.x2;
    c = {static_cast<uint32_t>(p1 >> 32) ^ c.x1 ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c.x3 ^ k1, static_cast<uint32_t>(p0)};
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return c;
}

/// The same for a counter and a key as arrays.
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
