#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.hpp"

#include <pcre2.h>

#include <array>
#include <mutex>
#include <set>
#include <stdexcept>

#include "espalier/text/utf8.hpp"

namespace espalier {
namespace {

/// Oniguruma's \s: the Unicode property White_Space.
constexpr std::string_view kSpaceClass = "\\x{9}-\\x{d}\\x{85}\\p{Z}";
constexpr size_t kJitStackBytes = size_t{64} << 20;

[[noreturn]] void Refuse(const std::string& what) { throw std::invalid_argument(what); }

/// Properties with the same meaning in both libraries: general categories.
bool IsCategory(std::string_view name) {
  static const std::set<std::string_view> kNames = {
      "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl",
      "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
  return kNames.contains(name);
}

/// Walks over a pattern once, from left to right.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}

  std::string Result() {
    while (at_ < in_.size()) Next();
    if (in_class_) Refuse("a set [ that is not closed");
    return out_;
  }

 private:
  bool Ahead(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  /// Copies `count` characters.
  void Copy(size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  void Next() {
    const char c = in_[at_];
    if (c == '\\') return Escape();
    if (in_class_) return InClass(c);
    if (c == '[') return OpenClass();
    if (c == '(') return Group();
    if (c == '^' || c == '$') Refuse(fmt::format("the anchor {}", c));
    if (c == '}' && at_ + 1 < in_.size() && in_[at_ + 1] == '+') Refuse("an interval followed by +");
    Copy(1);
  }

  void OpenClass() {
    in_class_ = true;
    Copy(Ahead("[^") ? 2 : 1);
    if (Ahead("]")) Refuse("the set [] or []...]");
  }

  void InClass(char c) {
    if (c == '[') Refuse("a set within a set");
    if (Ahead("&&")) Refuse("an intersection of sets (&&)");
    if (c == ']') in_class_ = false;
    Copy(1);
  }

  void Group() {
    if (!Ahead("(?")) return Copy(1);
    for (std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?i:"})
      if (Ahead(known)) return Copy(known.size());
    Refuse(fmt::format("the group {}", in_.substr(at_, 4)));
  }

  void Escape() {
    if (at_ + 1 == in_.size()) Refuse("a \\ at the end");
    const char c = in_[at_ + 1];
    if (c == 's' || c == 'S') return Space(c == 'S');
    if (c == 'p' || c == 'P') return Property();
    if (c == 'u') return CodePoint();
    if (c == 'v') return Replace("\\x{b}");
    const bool letter_or_digit = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
    if (letter_or_digit && std::string_view("rntfeadDx").find(c) == std::string_view::npos)
      Refuse(fmt::format("\\{}", c));
    Copy(2);
  }

  void Replace(std::string_view text) {
    out_ += text;
    at_ += 2;
  }

  void Space(bool negated) {
    if (in_class_ && negated) Refuse("\\S within a set");
    Replace(in_class_ ? std::string(kSpaceClass) : fmt::format("[{}{}]", negated ? "^" : "", kSpaceClass));
  }

  /// \p{L}, \P{L}, \p{^L}, \pL.
  void Property() {
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{') Refuse("\\p without {}");
    const size_t end = in_.find('}', at_);
    if (end == in_.npos) Refuse("\\p{ that is not closed");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (name.find_first_of("=:") != name.npos) Refuse(fmt::format("\\p{{{}}}", name));
    out_ += fmt::format("\\{}{{{}{}{}}}", in_[at_ + 1], negated ? "^" : "", IsCategory(name) ? "" : "sc:", name);
    at_ = end + 1;
  }

  void CodePoint() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
      Refuse("\\u without four hexadecimal digits");
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// The memory that a thread needs to match: results and the stack of compiled patterns.
struct Matcher {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{32} << 10, kJitStackBytes, nullptr);

  Matcher() {
    CHECK(data != nullptr && context != nullptr && stack != nullptr, "no memory for PCRE2");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  ~Matcher() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

std::string ToPcre2(std::string_view oniguruma) { return Translation(oniguruma).Result(); }

struct Pattern::Code {
  pcre2_code* code = nullptr;
};

Pattern::Pattern(std::string_view oniguruma) : code_(std::make_unique<Code>()) {
  const std::string text = ToPcre2(oniguruma);
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t where = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP, &error,
                              &where, context.get());
  if (code_->code == nullptr) Refuse(fmt::format("{} (at {} of {})", MessageOf(error), where, text));
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // interpreted without a compiler for this processor
}

Pattern::~Pattern() { pcre2_code_free(code_->code); }

void Pattern::Split(std::string_view text, std::vector<Part>& parts) const {
  static thread_local Matcher matcher;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto add = [&](size_t begin, size_t end, bool matches) {
    if (begin < end) parts.push_back({text.substr(begin, end - begin), matches});
  };
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    const int found =
        pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, matcher.data, matcher.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw UserError(ExitStatus::kData,
                      fmt::format("the tokenizer's pattern fails on this text: {}", MessageOf(found)));
    const size_t begin = pcre2_get_ovector_pointer(matcher.data)[0], end = pcre2_get_ovector_pointer(matcher.data)[1];
    add(done, begin, false);
    add(begin, end, true);
    done = end;
    from = begin < end ? end : end < text.size() ? end + CharacterBytes(text, end) : text.size() + 1;
  }
  add(done, text.size(), false);
}

}  // namespace espalier
