// The temporary folder of a self-test, and the output of its runs.
#pragma once

#include <string>

#include "espalier/comm/world.hpp"

namespace espalier {

/// Makes a folder in `parent` on rank 0, and returns its path on all ranks. Throws AgreedError (kDeck) if it cannot be
/// made, or if some rank does not see it. Collective.
std::string MakeScratch(World& world, const std::string& parent);

/// While it exists, output of this process on the standard output is appended to a file.
class OutputToFile {
 public:
  explicit OutputToFile(const std::string& path);
  ~OutputToFile();
  OutputToFile(const OutputToFile&) = delete;
  OutputToFile& operator=(const OutputToFile&) = delete;

 private:
  int saved_;
};

}  // namespace espalier
