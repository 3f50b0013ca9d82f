// Distinguishes sets of data files without reading them whole: a hash of a bounded part of every file.
#pragma once

#include <functional>
#include <vector>

#include "data/open_files.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {

/// A hash of `hash` and `value`.
inline uint64_t Fold(uint64_t hash, uint64_t value) { return Mix64(hash ^ Mix64(value)); }

/// Fills DataFile::sample of all `files` in order: both ends of each file, and 64 blocks of 64 KiB spread evenly over
/// all of them together, so that up to 4 MiB are read whole. Reads at most 8 MiB and 512 bytes for each file.
/// `before_file` may throw to stop. Throws UserError (kData) if a file cannot be read.
void SampleFiles(std::vector<DataFile>& files, OpenFiles& open, const std::function<void()>& before_file);

}  // namespace espalier
