#include "espalier/executor/library_versions.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

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

std::string CheckArchitecture(std::span<const int> built, int capability) {
  const auto runs = [&](int code) { return code / 10 == capability / 10 && code <= capability; };
  if (std::ranges::any_of(built, runs)) return "";
  const std::string what = fmt::format("the GPU has compute capability {}.{}, and this program is built for {}",
                                       capability / 10, capability % 10, fmt::join(built, ", "));
  if (capability < built.back())
    throw UserError(ExitStatus::kFault,
                    fmt::format("cuda: {}: build with -Dgpu_architectures={} (at least 80)", what, capability));
  return fmt::format(
      "{}: the driver compiles its kernels at the first start, for {} and not for what is newer; "
      "-Dgpu_architectures={} builds them",
      what, built.back(), capability);
}

}  // namespace espalier
