#include "key_parts.hpp"

#include <algorithm>
#include <string>

namespace espalier {
namespace {

/// The position after the string that begins at `at`.
size_t PassString(std::string_view toml, size_t at) {
  const char quote = toml[at];
  const std::string three(3, quote);
  auto starts = [&](std::string_view what) { return toml.substr(at).starts_with(what); };
  const bool many_lines = starts(three);
  at += many_lines ? 3 : 1;
  while (at < toml.size() && !(many_lines ? starts(three) : toml[at] == quote || toml[at] == '\n'))
    at += quote == '"' && toml[at] == '\\' ? 2 : 1;
  // A string of many lines may end in two quotes of its own.
  for (int closing = many_lines ? 5 : 1; closing > 0 && at < toml.size() && toml[at] == quote; --closing) ++at;
  return at;
}

}  // namespace

int LineOfLongKey(std::string_view toml) {
  int parts = 1;
  for (size_t at = 0; at < toml.size();) {
    const char c = toml[at];
    if (c == '"' || c == '\'') {
      at = PassString(toml, at);
      continue;
    }
    if (c == '#') {
      at = std::min(toml.find('\n', at), toml.size());
      continue;
    }
    if (c == '.' && ++parts > kMaxKeyParts) return 1 + static_cast<int>(std::ranges::count(toml.substr(0, at), '\n'));
    if (c == '=' || c == ',' || c == '\n') parts = 1;
    ++at;
  }
  return 0;
}

}  // namespace espalier
