#include "espalier/util/philox.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "espalier/util/error.hpp"

// The bits must not depend on whether the processor has fused multiply-add.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

namespace espalier {
namespace {

#define ESPALIER_INLINE inline __attribute__((always_inline))

// The thread sanitizer cannot start a program that chooses among clones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
// Wider vectors, the same operations: each lane computes what the plain version does.
#define ESPALIER_WIDE __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define ESPALIER_WIDE
#endif

// x as a double, exactly, by bits alone: conversions from 64-bit integers do not vectorise everywhere.
ESPALIER_INLINE double Exact(uint32_t x) { return std::bit_cast<double>(uint64_t{0x4330000000000000u} | x) - 0x1p52; }

// ln(x) for 2^-33 <= x < 1, within 1 ulp: x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), s = f / (2 + f),
// ln(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2))). Method and coefficients as in FreeBSD's msun e_log.c.
ESPALIER_INLINE double Log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  // Adding 1 - sqrt(1/2) in the top bits of the mantissa carries into the exponent where 1 + f would exceed sqrt(2).
  const uint64_t shifted = bits + ((uint64_t{0x3ff00000u} - 0x3fe6a09eu) << 32);
  const double k = Exact(static_cast<uint32_t>(shifted >> 52)) - 1023.0;
  const uint64_t mantissa = (shifted & 0x000fffffffffffffu) + (uint64_t{0x3fe6a09eu} << 32);
  const double f = std::bit_cast<double>(mantissa) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half = 0.5 * f * f;
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  return k * kLn2High - ((half - (s * (half + (even + odd)) + k * kLn2Low)) - f);
}

// sin and cos of an angle in [-pi/4, pi/4], within 1 ulp (msun k_sin.c, k_cos.c).
ESPALIER_INLINE double SinNear0(double x) {
  const double z = x * x;
  const double r =
      8.33333333332248946124e-03 +
      z * (-1.98412698298579493134e-04 +
           z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
  return x + z * x * (-1.66666666666666324348e-01 + z * r);
}

ESPALIER_INLINE double CosNear0(double x) {
  const double z = x * x;
  const double r = z * (4.16666666666666019037e-02 +
                        z * (-1.38888888888741095749e-03 +
                             z * (2.48015872894767294178e-05 +
                                  z * (-2.75573143513906633035e-07 +
                                       z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
  const double half = 0.5 * z;
  const double w = 1.0 - half;
  return w + (((1.0 - w) - half) + z * r);
}

struct Pair {
  double first, second;
};

// Box-Muller: radius from `a`, angle 2 pi b / 2^32 from `b`. Multiples of 90 degrees are split off in integers, so the
// remaining angle is exact before its one multiplication.
ESPALIER_INLINE Pair BoxMuller(uint32_t a, uint32_t b) {
  const double radius = std::sqrt(-2.0 * Log((Exact(a) + 0.5) * 0x1p-32));
  const uint32_t quarter = (b + 0x20000000u) >> 30;
  const double angle = static_cast<double>(static_cast<int32_t>(b - (quarter << 30))) * 0x1.921fb54442d18p-30;
  const uint64_t sine = std::bit_cast<uint64_t>(SinNear0(angle));
  const uint64_t cosine = std::bit_cast<uint64_t>(CosNear0(angle));
  // Quarters 1 and 3 swap sine and cosine; cos is negative in 1 and 2, sin in 2 and 3.
  const uint64_t swap = uint64_t{0} - (quarter & 1u);
  const uint64_t cos_sign = uint64_t{(quarter ^ (quarter >> 1)) & 1u} << 63;
  const uint64_t sin_sign = uint64_t{(quarter >> 1) & 1u} << 63;
  const double c = std::bit_cast<double>(((cosine & ~swap) | (sine & swap)) ^ cos_sign);
  const double s = std::bit_cast<double>(((sine & ~swap) | (cosine & swap)) ^ sin_sign);
  return {radius * c, radius * s};
}

constexpr int kBlocks = 64;

// Normals of the blocks first, first + 1, ... first + 63; out[4 i + j] is word j of block i.
ESPALIER_WIDE void NormalBlocks(float* out, uint64_t key, uint64_t first, double std) {
  alignas(64) uint32_t words[4][kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    const uint64_t block = first + static_cast<uint64_t>(i);
    const PhiloxWords w = TenRounds({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0},
                                    static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
    words[0][i] = w.x0;
    words[1][i] = w.x1;
    words[2][i] = w.x2;
    words[3][i] = w.x3;
  }
  alignas(64) float normal[4][kBlocks];
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kBlocks; ++i) {
      const Pair p = BoxMuller(words[2 * half][i], words[2 * half + 1][i]);
      normal[2 * half][i] = static_cast<float>(std * p.first);
      normal[2 * half + 1][i] = static_cast<float>(std * p.second);
    }
  }
  for (int i = 0; i < kBlocks; ++i) {
    for (int j = 0; j < 4; ++j) out[4 * i + j] = normal[j][i];
  }
}

uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const PhiloxWords w = TenRounds({counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
  return {w.x0, w.x1, w.x2, w.x3};
}

uint64_t StreamKey(int64_t seed, std::string_view name) {
  return Mix64(Mix64(static_cast<uint64_t>(seed)) ^ Fnv1a64(name));
}

double NormalAt(int64_t seed, std::string_view name, int64_t element) {
  CHECK(element >= 0, "element {} of {}", element, name);
  const uint64_t key = StreamKey(seed, name);
  const uint64_t block = static_cast<uint64_t>(element) / 4;
  const auto w = Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0},
                            {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  const bool upper = element % 4 >= 2;
  const Pair p = BoxMuller(upper ? w[2] : w[0], upper ? w[3] : w[1]);
  return element % 2 == 0 ? p.first : p.second;
}

void FillNormalRun(float* out, uint64_t key, int64_t first, int64_t count, double std) {
  constexpr int64_t kElements = 4 * kBlocks;
  int64_t done = 0;
  while (done < count) {
    const int64_t skip = (first + done) % 4;
    const uint64_t block = static_cast<uint64_t>(first + done) / 4;
    if (skip == 0 && count - done >= kElements) {
      NormalBlocks(out + done, key, block, std);
      done += kElements;
      continue;
    }
    float whole[kElements];
    NormalBlocks(whole, key, block, std);
    const int64_t take = std::min(kElements - skip, count - done);
    std::copy_n(whole + skip, take, out + done);
    done += take;
  }
}

}  // namespace espalier
