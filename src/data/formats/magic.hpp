// First bytes of files, which identify formats.
#pragma once

#include <cstdint>
#include <string_view>

namespace espalier {

inline constexpr int32_t kLlmcGpt2 = 20240520, kLlmcLlama3 = 20240801;
inline constexpr std::string_view kTokensMagic{"ESPTOK\0\1", 8};
inline constexpr std::string_view kLlmqMagic{"BIN.TOK\n", 8};
inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr std::string_view kHdf5Magic{"\x89HDF\r\n\x1a\n", 8};

}  // namespace espalier
