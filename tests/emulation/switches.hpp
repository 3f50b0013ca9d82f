// Switches of the emulation in the environment, read anew in every call: a variable holds words, separated by commas.
#pragma once

#include <string>

namespace espalier::emulation {

/// True if `word` is one of the variable's words.
bool HasSwitch(const char* variable, const std::string& word);

/// The rest of the first of the variable's words that begins with `prefix`; "" if none does.
std::string Switch(const char* variable, const std::string& prefix);
/// The same as a number.
long SwitchedNumber(const char* variable, const std::string& prefix, long otherwise);

/// The compute capability of all emulated GPUs: ESPALIER_EMULATED_CAPABILITY, 90 without it.
int Capability();

/// Version of a library, as its code: ESPALIER_EMULATED_VERSIONS has words such as NCCL=2.20; `built` without one.
int Version(const std::string& library, int built, int per_major, int per_minor);

}  // namespace espalier::emulation
