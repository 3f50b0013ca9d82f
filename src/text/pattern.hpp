// Regular expressions of tokenizer.json. Hugging Face matches them with Oniguruma, this program with PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {

/// A part of a text, and whether the pattern matches it.
struct Part {
  std::string_view text;
  bool matches;
};

/// The same language in PCRE2's syntax. The two differ in \s (PCRE2's has U+180E), in \v and \h, in scripts (\p{Han} in
/// PCRE2 covers the characters that Han text uses, in Oniguruma only the characters of the script) and in \uHHHH.
/// Throws std::invalid_argument for constructs without a certain translation: \w, \b, anchors, sets within sets,
/// look-behind, back references.
std::string ToPcre2(std::string_view oniguruma);

/// A compiled pattern; any number of threads may share it.
class Pattern {
 public:
  /// Throws std::invalid_argument with the reason.
  explicit Pattern(std::string_view oniguruma);
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern();

  /// Cuts `text` (valid UTF-8) into matches and the text between them; no part is empty.
  void Split(std::string_view text, std::vector<Part>& parts) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace espalier
