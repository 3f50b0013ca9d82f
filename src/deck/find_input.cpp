#include "espalier/deck/find_input.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "espalier/util/environment.hpp"
#include "espalier/util/spelling.hpp"

namespace espalier {
namespace {

/// The folder `inputs` of the installation (PREFIX/bin/espalier) or clone (build/espalier).
std::filesystem::path OwnInputs() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"../share/espalier/inputs", "../inputs"}) {
    auto folder = (program / place).lexically_normal();
    if (!program.empty() && std::filesystem::is_directory(folder, error)) return folder;
  }
  return {};
}

/// In search order: folders of this executable, then of $ESPALIER_ROOT.
std::vector<std::string> FoldersOfInputs() {
  std::vector<std::string> folders;
  if (const auto own = OwnInputs(); !own.empty()) folders.push_back(own);
  if (const auto root = FromEnvironment("ESPALIER_ROOT")) {
    const auto inputs = (std::filesystem::path(*root) / "inputs").lexically_normal().string();
    if (std::ranges::find(folders, inputs) == folders.end()) folders.push_back(inputs);
  }
  return folders;
}

bool IsThere(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::status(path, error).type() != std::filesystem::file_type::not_found;
}

/// "llama/tiny.toml", ...: by name, without cluster files.
std::vector<std::string> ShippedDecks() {
  std::vector<std::string> names;
  std::error_code error;
  for (const std::string& folder : FoldersOfInputs())
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
      const auto name = entry.path().lexically_relative(folder);
      if (name.extension() == ".toml" && *name.begin() != "clusters") names.push_back(name.string());
    }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::optional<std::string> FindInput(const std::string& name) {
  if (name.empty() || IsThere(name)) return name;
  if (name[0] == '/') return std::nullopt;
  for (const std::filesystem::path folder : FoldersOfInputs())
    for (const auto& place : {folder, folder.parent_path()})
      if (IsThere(place / name)) return (place / name).lexically_normal().string();
  return std::nullopt;
}

/// If several have the name, it is the one with the shortest path.
std::string ShippedDeckNamed(std::string_view word) {
  const std::string stem = std::filesystem::path(word).stem().string();
  std::string found;
  for (const std::string& name : ShippedDecks())
    if (std::filesystem::path(name).stem() == stem && (found.empty() || name.size() < found.size())) found = name;
  return found;
}

std::string WhereElse(const std::string& name) {
  const auto folders = FoldersOfInputs();
  const bool looked = !folders.empty() && !name.starts_with('/');
  return (looked ? fmt::format(", here or in {}", fmt::join(folders, " or ")) : "") +
         DidYouMean(ShippedDeckNamed(name));
}

}  // namespace espalier
