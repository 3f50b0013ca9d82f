#include "commands/output_file.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "espalier/util/error.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// A device or a pipe, such as /dev/stdout: written in place, not replaced.
bool IsSpecial(const fs::path& path) { return fs::exists(path) && !fs::is_regular_file(path); }

/// An empty file may be a temporary one that its maker holds open, so it is filled, not replaced.
bool IsEmpty(const fs::path& path) {
  std::error_code error;
  return fs::file_size(path, error) == 0 && !error;
}

/// The file to which links lead.
fs::path EndOfLinks(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target;
}

/// Why a file cannot be written; empty if it can.
std::string WhyNotWritable(const fs::path& given) {
  const fs::path path = EndOfLinks(given);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) return fmt::format("the folder {} does not exist", folder.string());
  if (fs::is_directory(path)) return "is a folder";
  const bool writable =
      (!fs::exists(path) || access(path.c_str(), W_OK) == 0) && (IsSpecial(path) || access(folder.c_str(), W_OK) == 0);
  return writable ? "" : fmt::format("cannot be written: {}", std::strerror(errno));
}

}  // namespace

void CheckWritable(std::string_view option, const std::string& path) {
  const std::string why = path.empty() ? "" : WhyNotWritable(path);
  if (!why.empty()) throw UserError(ExitStatus::kDeck, fmt::format("command line: {} {}: {}", option, path, why));
}

void WriteOutput(const std::string& path, std::string_view text) {
  if (path.empty()) return;
  const bool fills = IsEmpty(path);
  if (!IsSpecial(path) && !fills) return WriteWhole(EndOfLinks(path).string(), text);
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (file.flush()) return;
  const int cause = errno;
  std::error_code ignored;
  if (fills) file.close(), std::filesystem::resize_file(path, 0, ignored);
  throw UserError(ExitStatus::kFault, fmt::format("{}: cannot write: {}", path, std::strerror(cause)));
}

}  // namespace espalier
