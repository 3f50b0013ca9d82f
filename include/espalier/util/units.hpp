// Factors between units.
#pragma once

namespace espalier {

inline constexpr double kMicro = 1e-6, kGiga = 1e9, kTera = 1e12;
inline constexpr double kMiB = 1024.0 * 1024.0, kGiB = 1024.0 * kMiB;

}  // namespace espalier
