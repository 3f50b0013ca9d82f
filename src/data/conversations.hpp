// The source of conversations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "espalier/data/token_source.hpp"

namespace espalier {

/// Opens files of conversations, one per line, as one source. Throws UserError (kData).
std::unique_ptr<TokenSource> OpenConversations(const std::vector<std::string>& paths, const DataSettings& settings,
                                               const BeforeFile& before_file);

}  // namespace espalier
