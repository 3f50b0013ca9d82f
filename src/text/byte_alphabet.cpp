#include "text/byte_alphabet.hpp"

#include <utf8proc.h>

#include <array>
#include <cstdint>

namespace espalier {
namespace {

constexpr int32_t kCharacters = 0x144;  ///< all characters are below this one

bool IsPrintable(int byte) { return (0x21 <= byte && byte <= 0x7e) || (0xa1 <= byte && byte <= 0xac) || 0xae <= byte; }

/// The byte of each character, -1 for none.
std::array<int, kCharacters> MakeAlphabet() {
  std::array<int, kCharacters> bytes;
  bytes.fill(-1);
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) bytes[static_cast<size_t>(IsPrintable(byte) ? byte : 256 + others++)] = byte;
  return bytes;
}

}  // namespace

std::optional<std::string> FromByteAlphabet(std::string_view text) {
  static const std::array<int, kCharacters> kBytes = MakeAlphabet();
  std::string bytes;
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    int32_t c = -1;
    const auto length = utf8proc_iterate(data + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    if (length <= 0 || c >= kCharacters || kBytes[static_cast<size_t>(c)] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[static_cast<size_t>(c)]);
    at += static_cast<size_t>(length);
  }
  return bytes;
}

}  // namespace espalier
