// Text files, read in parts.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

/// Bytes [begin, end) of a file, up to its end. Throws UserError (kData) if it cannot be read.
std::string ReadRange(const std::string& path, int64_t begin, int64_t end);

/// Bytes of a file. Throws UserError (kData).
int64_t FileBytes(const std::string& path);

/// The line of a byte, from 1.
int64_t LineOf(const std::string& path, int64_t offset);

/// Whether the lines of a file are documents.
bool HasLines(const std::string& path);

}  // namespace espalier
