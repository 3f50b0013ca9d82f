#include "data/open_files.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

size_t MostOpen() {
  constexpr rlim_t kMax = 64, kShare = 8;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMax;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / kShare, 1, kMax));
}

}  // namespace

OpenFiles::OpenFiles() : OpenFiles(MostOpen()) {}

const InputFile& OpenFiles::Get(const std::string& path) {
  const auto open = std::ranges::find(files_, path, &InputFile::path);
  if (open != files_.end()) {
    files_.splice(files_.begin(), files_, open);
    return files_.front();
  }
  while (files_.size() >= most_) files_.pop_back();
  if (std::filesystem::is_directory(path))
    throw UserError(ExitStatus::kData, fmt::format("{}: is a directory; its files are \"{}/**/*\"", path, path));
  return files_.emplace_front(path);
}

}  // namespace espalier
