// Instruction levels. Code that may contain a level's instructions is compiled once per level, in the inline namespace
// espalier::cpu::ESPALIER_CPU_LEVEL, which the build defines, so other code cannot pick up such a function by accident.
// Code directly in espalier::cpu is compiled once, for any processor.
#pragma once

#include <cstdint>

namespace espalier::cpu {

/// In rising order. The code of kAvx512Bf16 also uses AMX, if UsesAmx().
enum class Level : uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// The level that kernels use: the processor's, or ESPALIER_ISA's, chosen at the first call. Throws UserError (kDeck)
/// if the processor lacks the level in ESPALIER_ISA.
Level UsedLevel();

/// True if bf16 GEMMs use AMX tiles.
inline bool UsesAmx() { return UsedLevel() == Level::kAmx; }

}  // namespace espalier::cpu
