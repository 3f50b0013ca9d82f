// How the bytes of a file of documents become tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/data/token_source.hpp"

namespace espalier {

/// The tokens of a block of whole lines.
struct BlockTokens {
  std::vector<int32_t> ids;
  std::vector<int64_t> documents;  ///< tokens at which a document begins, rising
};

/// Lines of JSON or text, as bytes or by a tokenizer.
class DocumentCoder {
 public:
  explicit DocumentCoder(const DataSettings& settings, bool json);
  /// Appends the tokens of whole lines. `at_end`: they are the last of the file. `line` is the number of the first one,
  /// from 1, or 0 if it is not known; `offset` its byte. Throws UserError (kData) with file and line.
  void Encode(const std::string& path, std::string_view lines, int64_t line, int64_t offset, bool at_end,
              BlockTokens& out) const;
  /// Tells apart what gives other tokens.
  uint64_t Key() const;

 private:
  void AddText(std::string_view text, BlockTokens& out) const;
  void EndDocument(BlockTokens& out) const;

  bool json_;  ///< one line is one document; otherwise the file is
  std::string field_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace espalier
