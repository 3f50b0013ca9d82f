// Expands paths and globs to a list of files, like Python's glob (doc/data.md).
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <set>
#include <tuple>

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

/// Names in a folder, sorted; none if it cannot be listed, as in the shell and Python.
std::vector<std::string> List(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool IsLink(const std::string& path) {
  std::error_code error;
  return fs::is_symlink(path, error);
}

/// Expands the names of a glob from left to right.
class Expansion {
 public:
  Expansion(const std::string& pattern, const BeforeFile& before_file) : before_file_(before_file) {
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
  std::vector<std::string> Names(const std::string& folder) const {
    if (before_file_) before_file_();
    return List(folder);
  }

  void Descend(const std::string& folder, size_t depth) {
    const std::string& name = names_[depth];
    if (name == "**") return DescendAll(folder, depth);
    if (!IsGlob(name)) return Visit(Join(folder, name), depth);
    for (const std::string& entry : Names(folder)) {
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

  /// Visits each folder once. Links are followed last, so that a folder with several paths is found by the path without
  /// links, on every rank.
  void DescendAll(const std::string& root, size_t depth) {
    std::deque<std::string> folders = {root}, links;
    while (!folders.empty()) {
      const std::string folder = std::move(folders.front());
      folders.pop_front();
      if (FirstVisit(folder, depth)) Enter(folder, depth, folders, links);
      if (folders.empty()) std::swap(folders, links);
    }
  }

  /// Visits one folder of a walk; adds its folders to `folders` or `links`.
  void Enter(const std::string& folder, size_t depth, std::deque<std::string>& folders,
             std::deque<std::string>& links) {
    const bool last = depth + 1 == names_.size();
    if (!last) Descend(folder, depth + 1);
    for (const std::string& entry : Names(folder)) {
      if (entry.front() == '.') continue;
      const std::string path = Join(folder, entry);
      if (IsFolder(path)) {
        (IsLink(path) ? links : folders).push_back(path);
      } else if (last) {
        Visit(path, depth);
      }
    }
  }

  bool FirstVisit(const std::string& folder, size_t depth) {
    struct stat status {};
    if (stat(folder.empty() ? "." : folder.c_str(), &status) != 0) return false;
    return visited_.emplace(depth, status.st_dev, status.st_ino).second;
  }

  const BeforeFile& before_file_;
  std::vector<std::string> names_;
  std::vector<std::string> files_;
  std::set<std::tuple<size_t, dev_t, ino_t>> visited_;  ///< folders, by the depth of the "**" that visited them
};

}  // namespace

std::vector<std::string> ExpandPaths(const std::vector<std::string>& paths, const BeforeFile& before_file) {
  std::vector<std::string> files, errors;
  for (const std::string& path : paths) {
    if (!IsGlob(path)) {
      if (access(path.c_str(), R_OK) == 0) {
        files.push_back(path);
      } else {
        errors.push_back(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
      }
      continue;
    }
    std::vector<std::string> found = Expansion(path, before_file).TakeFiles();
    if (found.empty()) errors.push_back(fmt::format("{}: no file matches", path));
    files.insert(files.end(), found.begin(), found.end());
  }
  if (paths.empty()) errors.emplace_back("no data: the list of paths is empty");
  if (!errors.empty()) throw UserError(ExitStatus::kData, errors);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace espalier
