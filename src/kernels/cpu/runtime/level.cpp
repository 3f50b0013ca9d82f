// The instructions that the processor has, and the level that kernels use.
#include "level.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace espalier {
namespace cpu {
namespace {

#if defined(__x86_64__)
constexpr std::array<std::string_view, 5> kNames = {"sse2", "avx2", "avx512", "avx512_bf16", "amx"};

/// CPUID leaf 7, EDX bits 22 and 24 (Intel SDM, vol. 2A); compilers before clang 16 have no names for them.
bool HasAmxBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;
}

/// Linux grants the tile registers to a process on request (arch_prctl(2)); all of its threads then have them.
bool AmxIsGranted() {
#if defined(__linux__)
  constexpr long kRequestComponent = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestComponent, kTileData) == 0;
#else
  return false;
#endif
}

// Checks the instruction sets with which src/kernels/meson.build compiles each level. The compiler's function asks the
// system, too.
Level HighestLevel() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Level::kBaseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return Level::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Level::kAvx512;
  return HasAmxBf16() && AmxIsGranted() ? Level::kAmx : Level::kAvx512Bf16;
}

/// Intel's dot products of bf16 have half the rate of fp32 multiply-adds, AMD's twice that rate (doc/performance.md).
Level FastestLevel(Level highest) {
  return highest == Level::kAvx512Bf16 && __builtin_cpu_is("intel") ? Level::kAvx512 : highest;
}
#else
#if defined(__aarch64__)
constexpr std::array<std::string_view, 1> kNames = {"neon"};
#else
constexpr std::array<std::string_view, 1> kNames = {"baseline"};
#endif

Level HighestLevel() { return Level::kBaseline; }
Level FastestLevel(Level highest) { return highest; }
#endif

std::string_view NameOf(Level level) { return kNames[static_cast<size_t>(level)]; }

Level ChooseLevel() {
  const Level highest = HighestLevel();
  const auto cap = FromEnvironment("ESPALIER_ISA");
  if (!cap) return FastestLevel(highest);
  const auto found = std::ranges::find(kNames, *cap);
  const auto level = static_cast<Level>(found - kNames.begin());
  if (found == kNames.end() || level > highest)
    throw UserError(
        ExitStatus::kDeck,
        fmt::format("environment: ESPALIER_ISA = \"{}\": this processor and its system have {}: name one of these, or "
                    "unset it",
                    *cap, fmt::join(kNames.begin(), kNames.begin() + static_cast<int>(highest) + 1, ", ")));
  return level;
}

}  // namespace

Level UsedLevel() {
  static const Level level = ChooseLevel();
  return level;
}

}  // namespace cpu

std::string_view CpuLevel() { return cpu::NameOf(cpu::UsedLevel()); }
std::string_view UncappedCpuLevel() { return cpu::NameOf(cpu::FastestLevel(cpu::HighestLevel())); }

bool CpuWidensBf16() { return cpu::UsedLevel() < cpu::Level::kAvx512Bf16; }

}  // namespace espalier
