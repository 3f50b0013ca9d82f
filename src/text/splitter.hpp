// How tokenizer.json cuts a text into words.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_reader.hpp"
#include "text/pattern.hpp"

namespace espalier {

/// Bytes of the white space (Unicode's White_Space) that begins at text[at], or ends before it; 0: none.
size_t SpaceBytes(std::string_view text, size_t at);
size_t SpaceBytesBefore(std::string_view text, size_t at);

/// Cuts a text into matches and the text between them.
using Cut = std::function<void(std::string_view text, std::vector<Part>& parts)>;

/// {"String": ...} or {"Regex": ...}. Throws UserError (kData) if the pattern is not supported.
Cut ReadPattern(const JsonReader& json);

/// A word, or text that is still to be cut into words.
struct Word {
  std::string_view text;
  bool first;  ///< begins where the whole text begins
};

/// Words of one text. Texts that a step has changed are kept in `changed`.
struct Words {
  std::vector<Word> list;
  std::deque<std::string> changed;
};

/// A step: cuts every word further, or changes it.
using SplitStep = std::function<void(Words& words)>;

struct Splitter {
  std::vector<SplitStep> steps;
  bool bytes = false;  ///< words are sequences of bytes (ByteLevel); otherwise of characters
};

/// The pre_tokenizer of a file. Throws UserError (kData) if it is not supported.
Splitter ReadSplitter(const JsonReader& json);

}  // namespace espalier
