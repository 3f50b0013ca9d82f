#include "train/selftest/scratch.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {

std::string MakeScratch(World& world, const std::string& parent) {
  std::string path = OnRankZero(world, [&] {
    std::string name = (std::filesystem::path(parent) / "espalier-selftest-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw UserError(ExitStatus::kDeck, fmt::format("selftest: cannot make a folder in {}: {} (--dir names another)",
                                                     parent, std::strerror(errno)));
    return name;
  });
  OnAllRanks(world, [&] {
    if (!std::filesystem::is_directory(path))
      throw UserError(ExitStatus::kDeck,
                      fmt::format("selftest: {} of rank 0 is not there on {}: --dir must name a folder that all nodes "
                                  "share",
                                  path, HostName()));
  });
  return path;
}

OutputToFile::OutputToFile(const std::string& path) {
  std::fflush(stdout);
  saved_ = ::dup(STDOUT_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;  // then the output of runs is visible, which does no harm
  ::dup2(file, STDOUT_FILENO);
  ::close(file);
}

OutputToFile::~OutputToFile() {
  std::fflush(stdout);
  ::dup2(saved_, STDOUT_FILENO);
  ::close(saved_);
}

}  // namespace espalier
