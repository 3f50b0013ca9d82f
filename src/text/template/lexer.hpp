// The tokens of a template: text between tags, and the content of tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::jinja {

enum class TokenKind : uint8_t {
  kText,
  kPrintBegin,
  kPrintEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;  ///< text of a string, without quotes and escapes
  int64_t line;
};

/// Cuts a template with trim_blocks and lstrip_blocks, as Jinja2 does. Throws TemplateError.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace espalier::jinja
