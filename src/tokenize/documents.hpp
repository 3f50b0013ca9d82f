// The documents of a part of the input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/tokenize/tokenize.hpp"

namespace espalier {

/// Bytes [begin, end) of a file: a range of a text (cut at a good place nearby), or the lines that begin in the range.
struct Slice {
  std::string path;
  int64_t bytes = 0;  ///< size of the file
  int64_t begin = 0, end = 0;
};

/// The lines of a .jsonl that begin in a slice: calls `on_text` with the text of each document. Returns the number of
/// skipped lines; only with job.skip_bad, otherwise it throws UserError (kData) with file and line.
int64_t ReadLines(const Slice& slice, const TokenizeJob& job, const std::function<void(std::string_view)>& on_text);

/// The tokens of some slices, including the ones around each document.
struct PartTokens {
  std::vector<int32_t> ids;
  int64_t documents = 0;  ///< documents that end here
  int64_t bad_lines = 0;
};

/// Throws like Tokenize.
PartTokens EncodePart(const Tokenizer& tokenizer, const TokenizeJob& job, const std::vector<Slice>& slices);

}  // namespace espalier
