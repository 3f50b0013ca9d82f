#include "espalier/util/printable_lines.hpp"

namespace espalier {

std::string PrintableLines(std::string_view text) {
  std::string printable(text);
  for (size_t i = 0; i < printable.size(); ++i) {
    const auto byte = static_cast<unsigned char>(printable[i]);
    if ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f) printable[i] = '?';
    // U+0080 to U+009F, in UTF-8.
    if (byte == 0xc2 && i + 1 < printable.size() && (static_cast<unsigned char>(printable[i + 1]) & 0xe0) == 0x80)
      printable.replace(i, 2, "?");
  }
  return printable;
}

}  // namespace espalier
