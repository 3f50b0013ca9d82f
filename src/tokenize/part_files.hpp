// The folder OUTPUT.parts: the finished parts of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tokenize/documents.hpp"

namespace espalier {

/// The summary that the file of a part records.
struct PartSummary {
  int64_t tokens = 0, documents = 0, bad_lines = 0;
};

/// Owns the folder: one process at a time. Throws UserError: kFault for a failed write, kData for a folder that is in
/// use or belongs to another job.
class PartFiles {
 public:
  /// `job` lists everything on which the ids depend, one item per line.
  PartFiles(std::string folder, const std::string& job);
  PartFiles(const PartFiles&) = delete;
  PartFiles& operator=(const PartFiles&) = delete;
  ~PartFiles();

  /// The part, if it is finished and its file is whole.
  std::optional<PartSummary> Find(int64_t part) const;
  /// Writes a part under a temporary name and renames it.
  void Write(int64_t part, const PartTokens& tokens) const;
  /// Calls `use` with the ids of a part, in order, some at a time. Throws if the file is damaged.
  void Read(int64_t part, const std::function<void(std::span<const int32_t>)>& use) const;
  /// A temporary name in the folder.
  std::string Temporary(const std::string& name) const { return folder_ + "/tmp-" + name; }
  void Remove() const;

 private:
  std::string PathOf(int64_t part) const;

  std::string folder_;
  int lock_ = -1;
};

}  // namespace espalier
