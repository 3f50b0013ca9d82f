#include "train/run_files.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// The first line of every deck.toml that a run wrote. Only such a file is overwritten.
constexpr std::string_view kOurs = "# effective deck of a run; written by espalier\n";

/// True if `path` is a regular file, not a link, and begins with our line.
bool IsOurs(const fs::path& path) {
  try {
    std::array<char, kOurs.size()> line{};
    InputFile(path.string(), {.symlinks = Symlinks::kRefuse}).ReadAt(0, line.data(), std::ssize(line));
    return std::string_view(line.data(), line.size()) == kOurs;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

void RemoveFile(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    throw UserError(ExitStatus::kFault, fmt::format("{}: cannot remove: {}", path.string(), std::strerror(errno)));
}

std::string WriteEffectiveDeck(const fs::path& dir, const std::string& text, const fs::path& given) {
  const fs::path path = dir / "deck.toml";
  std::error_code error;
  if (fs::equivalent(path, given, error)) return "this run was started with it";
  if (fs::exists(fs::symlink_status(path, error)) && !IsOurs(path))
    return "its first line is not a run's (remove it to have the effective deck there)";
  WriteWhole(path, std::string(kOurs) + text);
  return "";
}

}  // namespace espalier
