// Jinja2's rules of white space, as Transformers sets them: trim_blocks (the newline after a tag or a comment is
// removed), lstrip_blocks (spaces before a tag that begins its line are removed); one newline at the end of the
// template is removed. A minus sign removes all white space on its side, a plus sign keeps it all.
#include "text/template/lexer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "text/template/value.hpp"

namespace espalier::jinja {
namespace {

constexpr std::string_view kBlank = " \t\r\n\f\v";
constexpr std::string_view kDigits = "0123456789";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameBegin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string WithPlainNewlines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void AppendUtf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  if (c >= 0x10000) put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f));
  if (c < 0x10000) put(0xe0 | c >> 12);
  put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(WithPlainNewlines(source)) {}

  std::vector<Token> Run() {
    while (at_ < text_.size()) {
      const size_t tag = NextTag();
      AddText(tag);
      if (tag == text_.npos) break;
      Tag();
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const { Fail(what, line_); }
  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  char At(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  bool Sees(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
  void Skip(size_t count) {
    line_ += std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                        text_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n');
    at_ += count;
  }
  void SkipBlank() { Skip(std::min(text_.find_first_not_of(kBlank, at_), text_.size()) - at_); }

  size_t NextTag() const {
    for (size_t at = text_.find('{', at_); at != text_.npos; at = text_.find('{', at + 1))
      if (const char next = At(at + 1); next == '{' || next == '%' || next == '#') return at;
    return text_.npos;
  }

  /// Adds the text up to `tag`, without the blanks that the tag removes from its end.
  void AddText(size_t tag) {
    const size_t end = std::min(tag, text_.size());
    std::string_view text = std::string_view(text_).substr(at_, end - at_);
    if (tag != text_.npos) text = text.substr(0, KeptBefore(text, tag));
    if (!text.empty()) Add(TokenKind::kText, std::string(text));
    Skip(end - at_);
  }
  size_t KeptBefore(std::string_view text, size_t tag) const {
    const char sign = At(tag + 2);
    const size_t kept = text.find_last_not_of(kBlank) + 1;  // npos + 1 is 0
    if (sign == '-') return kept;
    if (sign == '+' || At(tag + 1) == '{') return text.size();
    const size_t newline = text.rfind('\n');
    const size_t line = newline == text.npos ? 0 : newline + 1;
    const bool begins_line = line > 0 || at_ == 0 || text_[at_ - 1] == '\n';
    return begins_line && kept <= line ? line : text.size();
  }

  void Tag() {
    const char kind = text_[at_ + 1];
    Skip(2);
    if (At(at_) == '-' || At(at_) == '+') Skip(1);
    if (kind == '#') return Comment();
    Add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kTagBegin, "");
    Inside(kind == '{' ? '}' : '%', kind == '{' ? TokenKind::kPrintEnd : TokenKind::kTagEnd);
    RefuseRaw();
  }
  void RefuseRaw() const {
    const size_t n = tokens_.size();
    if (n >= 3 && tokens_[n - 3].kind == TokenKind::kTagBegin && tokens_[n - 2].text == "raw")
      Fail("{% raw %} is not supported", tokens_[n - 2].line);
  }

  void Comment() {
    const size_t end = text_.find("#}", at_);
    if (end == text_.npos) Refuse("a comment without #}");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    Skip(end + 2 - at_);
    AfterTag(sign, true);
  }
  /// Skips the blanks, or the newline, after the end of a tag.
  void AfterTag(char sign, bool trims) {
    if (sign == '-')
      SkipBlank();
    else if (sign != '+' && trims && At(at_) == '\n')
      Skip(1);
  }

  void Inside(char end, TokenKind kind) {
    std::string open;
    for (;;) {
      SkipBlank();
      if (at_ >= text_.size()) Refuse("a tag without an end");
      if (open.empty() && AtEnd(end)) break;
      One(open);
    }
    const char sign = At(at_);
    Add(kind, "");
    Skip(sign == '-' || (sign == '+' && end == '%') ? 3 : 2);
    AfterTag(sign, end == '%');
  }
  bool AtEnd(char end) const {
    const size_t at = at_ + (At(at_) == '-' || (At(at_) == '+' && end == '%') ? 1 : 0);
    return At(at) == end && At(at + 1) == '}';
  }

  void One(std::string& open) {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return String();
    if (IsDigit(c)) return Number();
    if (IsNameBegin(c)) return Name();
    Operator(open);
  }
  void Name() {
    size_t end = at_;
    while (IsNameBegin(At(end)) || IsDigit(At(end))) ++end;
    Take(TokenKind::kName, end);
  }
  void Take(TokenKind kind, size_t end) {
    Add(kind, text_.substr(at_, end - at_));
    Skip(end - at_);
  }
  void Number() {
    size_t end = std::min(text_.find_first_not_of(kDigits, at_), text_.size());
    const bool fraction = At(end) == '.' && IsDigit(At(end + 1));
    if (fraction) end = std::min(text_.find_first_not_of(kDigits, end + 1), text_.size());
    if (IsNameBegin(At(end)) || (text_[at_] == '0' && !fraction && end > at_ + 1))
      Refuse("this form of a number is not supported");
    Take(fraction ? TokenKind::kFloat : TokenKind::kInteger, end);
  }
  void Operator(std::string& open) {
    static constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto found = std::ranges::find_if(kOperators, [&](std::string_view o) { return Sees(o); });
    if (found == kOperators.end()) Refuse(fmt::format("the character '{}' is not expected here", text_[at_]));
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) Refuse(fmt::format("'{}' closes nothing", c));
      open.pop_back();
    }
    Take(TokenKind::kOperator, at_ + found->size());
  }

  void String() {
    const char quote = text_[at_];
    const int64_t line = line_;
    std::string value;
    size_t i = at_ + 1;
    while (i < text_.size() && text_[i] != quote) i = text_[i] == '\\' ? Escape(i + 1, value) : Plain(i, value);
    if (i >= text_.size()) Refuse("a string without an end");
    Skip(i + 1 - at_);
    tokens_.push_back({TokenKind::kString, std::move(value), line});
  }
  size_t Plain(size_t i, std::string& value) const {
    value += text_[i];
    return i + 1;
  }
  /// Appends the character of the escape at text_[i]; returns the position after it.
  size_t Escape(size_t i, std::string& value) const {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = At(i);
    if (const size_t known = kFrom.find(c); known != kFrom.npos) return value += kTo[known], i + 1;
    if (c == '\n') return i + 1;
    if (c == 'x' || c == 'u') return Hexadecimal(i + 1, c == 'x' ? 2 : 4, value);
    if (IsDigit(c) || c == 'N' || c == 'U' || c == '\0') Refuse(fmt::format("the escape \\{} is not supported", c));
    value += {'\\', c};
    return i + 1;
  }
  size_t Hexadecimal(size_t i, size_t digits, std::string& value) const {
    uint32_t code = 0;
    const char* begin = text_.data() + i;
    const char* end = text_.data() + std::min(i + digits, text_.size());
    const auto read = std::from_chars(begin, end, code, 16);
    if (read.ptr != begin + digits || (code >= 0xd800 && code < 0xe000)) Refuse("an escape of no character");
    AppendUtf8(value, code);
    return i + digits;
  }

  const std::string text_;
  size_t at_ = 0;
  int64_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace espalier::jinja
