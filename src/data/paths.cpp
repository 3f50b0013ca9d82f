// Files and globs to a list of files, as Python's glob does it: doc/data.md.
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "espalier/data/token_source.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

bool IsGlob(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

std::string Join(const std::string& folder, const std::string& name) {
  if (folder.empty() || folder.back() == '/') return folder + name;
  return folder + '/' + name;
}

/// Names in a folder; none if it cannot be listed, as the shell and Python have it.
std::vector<std::string> List(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// Expands the names of a glob from left to right.
class Expansion {
 public:
  explicit Expansion(const std::string& pattern) {
    std::string root;
    for (size_t begin = 0; begin <= pattern.size();) {
      const size_t end = std::min(pattern.find('/', begin), pattern.size());
      if (end > begin) names_.push_back(pattern.substr(begin, end - begin));
      if (begin == 0 && end == 0) root = "/";
      begin = end + 1;
    }
    Descend(root, 0);
  }
  std::vector<std::string> TakeFiles() { return std::move(files_); }

 private:
  void Descend(const std::string& folder, size_t depth) {
    const std::string& name = names_[depth];
    if (name == "**") return DescendAll(folder, depth);
    if (!IsGlob(name)) return Visit(Join(folder, name), depth);
    for (const std::string& entry : List(folder)) {
      if (fnmatch(name.c_str(), entry.c_str(), FNM_NOESCAPE | FNM_PERIOD) == 0) Visit(Join(folder, entry), depth);
    }
  }

  void Visit(const std::string& path, size_t depth) {
    std::error_code error;
    if (depth + 1 < names_.size()) {
      if (IsFolder(path)) Descend(path, depth + 1);
    } else if (fs::exists(path, error) && !IsFolder(path)) {
      files_.push_back(path);
    }
  }

  void DescendAll(const std::string& folder, size_t depth) {
    const bool last = depth + 1 == names_.size();
    if (!last) Descend(folder, depth + 1);
    for (const std::string& entry : List(folder)) {
      if (entry.front() == '.') continue;
      const std::string path = Join(folder, entry);
      if (IsFolder(path)) {
        if (!LeadsBack(path, folder)) DescendAll(path, depth);
      } else if (last) {
        Visit(path, depth);
      }
    }
  }

  /// True for a link to a folder that holds it: there the walk would not end.
  static bool LeadsBack(const std::string& path, const std::string& folder) {
    std::error_code error;
    if (!fs::is_symlink(path, error)) return false;
    const fs::path target = fs::canonical(path, error);
    const fs::path here = fs::canonical(folder.empty() ? "." : folder, error);
    return std::mismatch(target.begin(), target.end(), here.begin(), here.end()).first == target.end();
  }

  std::vector<std::string> names_;
  std::vector<std::string> files_;
};

}  // namespace

std::vector<std::string> ExpandPaths(const std::vector<std::string>& paths) {
  std::vector<std::string> files, mistakes;
  for (const std::string& path : paths) {
    if (!IsGlob(path)) {
      if (access(path.c_str(), R_OK) == 0) {
        files.push_back(path);
      } else {
        mistakes.push_back(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
      }
      continue;
    }
    std::vector<std::string> found = Expansion(path).TakeFiles();
    if (found.empty()) mistakes.push_back(fmt::format("{}: no file matches", path));
    files.insert(files.end(), found.begin(), found.end());
  }
  if (paths.empty()) mistakes.emplace_back("no data: the list of paths is empty");
  if (!mistakes.empty()) throw UserError(ExitStatus::kData, mistakes);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace espalier
