// Writes token files in parts. doc/data.md describes the format.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "espalier/data/token_source.hpp"

namespace espalier {

/// The narrowest width that holds a vocabulary.
TokenWidth WidthFor(int64_t vocab);

/// A token file whose number of tokens is known in advance. Every function throws UserError with path and reason:
/// kFault if the file cannot be written, kData for a vocabulary or an id that does not fit.
class TokenWriter {
 public:
  TokenWriter(const std::string& path, int64_t tokens, int64_t vocab, TokenWidth width);
  /// Appends ids, which must be in [0, vocab).
  void Append(std::span<const int32_t> ids);
  /// Ends the file and flushes it to the disk. All tokens must have been appended.
  void Finish();

 private:
  std::string path_;
  int64_t left_, vocab_;
  TokenWidth width_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace espalier
