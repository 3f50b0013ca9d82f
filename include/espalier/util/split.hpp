// Parts of a text.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace espalier {

/// Without blanks, tabs and carriage returns at its ends.
inline std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

/// The parts between separators, trimmed: as many as there are separators and one more.
inline std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(Trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

}  // namespace espalier
