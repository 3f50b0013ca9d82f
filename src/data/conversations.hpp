// The source of conversations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/formats/document_coder.hpp"
#include "data/open_files.hpp"
#include "espalier/data/token_source.hpp"

namespace espalier {

/// Where a conversation is in its file, and how many tokens and targets it has.
struct ConversationLine {
  int64_t offset = 0, bytes = 0;
  int64_t tokens = 0, targets = 0;
};

/// The conversations of a file, in order. Counts them first if there is no index. Throws UserError (kData).
std::vector<ConversationLine> ConversationsOf(const std::string& path, OpenFiles& open, const DataSettings& settings);

/// Throws UserError (kData) if the line has changed since it was counted, or an id is not below `vocab`.
BlockTokens ReadConversation(const std::string& path, OpenFiles& open, const DocumentCoder& coder,
                             const ConversationLine& at, int64_t vocab);

/// Opens files of conversations, one per line, as one source. Throws UserError (kData).
std::unique_ptr<TokenSource> OpenConversations(const std::vector<std::string>& paths, const DataSettings& settings,
                                               const BeforeFile& before_file);

}  // namespace espalier
