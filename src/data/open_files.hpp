// Data files that stay open between reads.
#pragma once

#include <cstddef>
#include <list>
#include <string>

#include "espalier/util/input_file.hpp"

namespace espalier {

/// Keeps the most recently used files open, and closes the least recently used one when there are too many.
class OpenFiles {
 public:
  /// An eighth of the descriptors that the process may have, at least 1 and at most 64.
  OpenFiles();
  explicit OpenFiles(size_t most) : most_(most) {}

  /// Valid until the next call. Throws UserError (kData) if the file cannot be opened.
  const InputFile& Get(const std::string& path);

 private:
  const size_t most_;
  std::list<InputFile> files_;  ///< most recently used first
};

}  // namespace espalier
