#include "espalier/executor/library_versions.hpp"

#include <fmt/core.h>

#include "espalier/util/error.hpp"

namespace espalier {

std::vector<std::string> CheckVersions(std::span<const LibraryVersion> libraries) {
  std::vector<std::string> older;
  for (const LibraryVersion& l : libraries) {
    const std::string what = fmt::format("{} {}.{} is loaded, and this program was built with the headers of {}.{}",
                                         l.name, l.loaded_major, l.loaded_minor, l.built_major, l.built_minor);
    if (l.loaded_major != l.built_major)
      throw UserError(
          ExitStatus::kFault,
          fmt::format(
              "cuda: {}: put the folder of version {} first in LD_LIBRARY_PATH, or build again with the headers "
              "of what is loaded",
              what, l.built_major));
    if (l.loaded_minor < l.built_minor) older.push_back(what + ": what is new there may fail");
  }
  return older;
}

}  // namespace espalier
