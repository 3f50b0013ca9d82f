// Files that are written as a whole.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// Writes a file by one rename, after its bytes are on the disk: a reader finds the old file or the new one, never a
/// part. A link at `path` is replaced, not followed; a file keeps its permissions. Throws UserError (kFault) with the
/// reason; then nothing has changed.
void WriteWhole(const std::string& path, std::string_view text);

}  // namespace espalier
