// The added_tokens of tokenizer.json: found in the text before any other processing.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;             ///< only where no letter or digit is next to it
  bool lstrip = false, rstrip = false;  ///< absorbs the white space before it, after it
  bool normalized = false;              ///< found in the normalized text, as normalized text
  bool special = false;
};

/// A part of a text: an added token, or text between added tokens (id < 0).
struct Section {
  std::string_view text;
  int32_t id = -1;
};

/// Finds tokens from left to right. Among tokens that begin at the same byte, the longest is taken.
class AddedTokens {
 public:
  /// `tokens` with the text to search for as their content.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Appends the sections of `text`; none is empty.
  void Split(std::string_view text, std::vector<Section>& sections) const;

 private:
  struct Node {
    int32_t token = -1;  ///< index into tokens_; -1: no token ends here
    std::map<char, size_t> next;
  };
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};  ///< bytes with which a token begins
};

}  // namespace espalier
