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
  std::vector<int64_t> lines;      ///< the bytes of the block at which the documents of JSON begin
  std::vector<uint8_t> targets;    ///< for conversations: for each token, 1 if it may be a target
};

/// Encodes lines of JSON or text, as bytes or by a tokenizer, or conversations by a template.
class DocumentCoder {
 public:
  /// `format` is a text format (IsText).
  DocumentCoder(const DataSettings& settings, DataFormat format);
  /// Appends the tokens of whole lines. `at_end`: they are the last of the file. `line` is the number of the first one,
  /// from 1, or 0 if it is not known; `offset` its byte. Throws UserError (kData) with file and line.
  void Encode(const std::string& path, std::string_view lines, int64_t line, int64_t offset, bool at_end,
              BlockTokens& out) const;
  /// Whether an index has an entry for each document, instead of one for each block of lines.
  bool IndexesDocuments() const { return format_ == DataFormat::kChat; }
  /// Differs for coders that give other tokens.
  uint64_t Key() const;

 private:
  void AddText(std::string_view text, BlockTokens& out) const;
  void EndDocument(BlockTokens& out) const;
  void AddLine(std::string_view line, BlockTokens& out) const;
  void AddConversation(std::string_view line, BlockTokens& out) const;

  DataFormat format_;
  std::string field_;
  std::shared_ptr<const ChatTemplate> template_;
  TrainOn train_on_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace espalier
