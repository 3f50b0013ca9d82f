#include "espalier/util/wrap.hpp"

#include <algorithm>

namespace espalier {

std::string Wrap(std::string_view line, size_t width, size_t indent) {
  const size_t first = line.find_first_not_of(' ');
  if (line.size() <= width || first == line.npos) return std::string(line);
  std::string text(line.substr(0, first));
  size_t used = first;  // bytes of the last line
  bool fresh = true;    // it has no word yet
  for (size_t begin = first; begin < line.size();) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    const size_t next = std::min(line.find_first_not_of(' ', end), line.size());
    if (!fresh && used + (end - begin) > width) {
      text.erase(text.find_last_not_of(' ') + 1);
      text += "\n" + std::string(indent, ' ');
      used = indent;
    }
    text += line.substr(begin, next - begin);
    used += next - begin;
    fresh = false;
    begin = next;
  }
  return text.erase(text.find_last_not_of(' ') + 1);
}

}  // namespace espalier
