// Files that commands write in addition to their printed output.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// Refuses a file that cannot be written, before the work: UserError (kDeck) that names the option. The file is not
/// touched yet. An empty path is no file.
void CheckWritable(std::string_view option, const std::string& path);

/// Replaces the file as WriteWhole does, or the target of links; fills an empty file; writes to a device or a pipe.
/// Throws UserError (kFault) with the reason, such as a full disk; then an empty file is still empty. An empty path is
/// no file.
void WriteOutput(const std::string& path, std::string_view text);

}  // namespace espalier
