#include "commands/output_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Why a file cannot be written; empty if it can.
std::string WhyNotWritable(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) return fmt::format("the folder {} does not exist", folder.string());
  if (fs::is_directory(path)) return "is a folder";
  const bool writable = access(fs::exists(path) ? path.c_str() : folder.c_str(), W_OK) == 0;
  return writable ? "" : fmt::format("cannot be written: {}", std::strerror(errno));
}

}  // namespace

void CheckWritable(std::string_view option, const std::string& path) {
  const std::string why = path.empty() ? "" : WhyNotWritable(path);
  if (!why.empty()) throw UserError(ExitStatus::kDeck, fmt::format("command line: {} {}: {}", option, path, why));
}

void WriteOutput(const std::string& path, std::string_view text) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be written", path));
}

}  // namespace espalier
