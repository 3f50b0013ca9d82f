#include "check_text.hpp"

#include <fmt/core.h>

#include "text.hpp"

namespace espalier {

bool CheckText(std::string_view text, const std::string& label, std::string_view what, Errors& errors) {
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char32_t c = DecodeUtf8(text, i);
    const bool control = (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7f;
    if (c == kNotUtf8 || control) {
      errors.push_back(fmt::format("{}:{}: byte 0x{:02x} {}: {}s are UTF-8 text", label, line, byte,
                                   control ? "is a control character" : "begins no UTF-8 character", what));
      return false;
    }
    line += c == '\n';
  }
  return true;
}

}  // namespace espalier
