#include "espalier/text/utf8.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace espalier {
namespace {

/// Bytes of the character with this first byte; 0 if no character begins with it.
size_t LengthOf(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/// Whether `second` may follow `first`: excludes overlong forms, surrogates and code points above U+10FFFF.
bool MayFollow(unsigned char first, unsigned char second) {
  if ((second & 0xc0) != 0x80) return false;
  switch (first) {
    case 0xe0:
      return second >= 0xa0;
    case 0xed:
      return second < 0xa0;
    case 0xf0:
      return second >= 0x90;
    case 0xf4:
      return second < 0x90;
    default:
      return true;
  }
}

unsigned char Byte(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

/// How many bytes of text[at ...] are the beginning of a character of this length.
size_t GoodBytes(std::string_view text, size_t at, size_t length) {
  size_t good = 1;
  while (good < length && at + good < text.size() &&
         (good == 1 ? MayFollow(Byte(text, at), Byte(text, at + 1)) : (Byte(text, at + good) & 0xc0) == 0x80))
    ++good;
  return good;
}

}  // namespace

std::optional<size_t> FindBadUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const size_t length = LengthOf(Byte(text, at));
    if (length == 0 || GoodBytes(text, at, length) != length) return at;
    at += length;
  }
  return std::nullopt;
}

size_t CharacterBytes(std::string_view text, size_t at) {
  return std::min(std::max<size_t>(1, LengthOf(Byte(text, at))), text.size() - at);
}

size_t UnfinishedBytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back, length = LengthOf(Byte(text, at));
    if (length > back && GoodBytes(text, at, length) == back) return back;
    if (length != 0) return 0;
  }
  return 0;
}

}  // namespace espalier
