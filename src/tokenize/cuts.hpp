// Where a long text can be cut so that the ids of its parts are the ids of the whole.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/text/tokenizer.hpp"

namespace espalier {

/// A place in a file. The text after it begins at `text`: tokenizers that put a space before a text need the file's own
/// space left out.
struct CutPlace {
  int64_t at = 0;
  int64_t text = 0;
  bool operator==(const CutPlace&) const = default;
};

/// The text of one file, which is one document.
class LongText {
 public:
  /// Searches places to cut from multiples of `grid` bytes.
  LongText(const Tokenizer& tokenizer, std::string path, int64_t bytes, int64_t grid)
      : tokenizer_(tokenizer), path_(std::move(path)), bytes_(bytes), grid_(grid) {}

  /// The first place at or after `nominal`. Throws UserError (kData) if there is none for a long way.
  CutPlace Find(int64_t nominal) const;
  /// The ids of the text between the places that Find returns. Throws UserError (kData) with the line if it is not
  /// UTF-8.
  std::vector<int32_t> Encode(int64_t nominal_begin, int64_t nominal_end) const;

 private:
  bool IsGood(const CutPlace& place) const;
  std::string Valid(int64_t begin, int64_t end) const;

  const Tokenizer& tokenizer_;
  std::string path_;
  int64_t bytes_, grid_;
};

}  // namespace espalier
