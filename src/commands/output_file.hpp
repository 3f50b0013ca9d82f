// Files that commands write beside what they print.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// Refuses a file that cannot be written, before the work: UserError (kDeck) that names the option. The file is not
/// touched yet. An empty path is no file.
void CheckWritable(std::string_view option, const std::string& path);

/// Replaces the file's content. Throws UserError (kFault) if that fails, on a full disk for one. An empty path is no
/// file.
void WriteOutput(const std::string& path, std::string_view text);

}  // namespace espalier
