// metrics.jsonl: each line is complete or absent, whatever happens to the disk or the process.
#pragma once

#include <sys/types.h>

#include <string>

namespace espalier {

class MetricsFile {
 public:
  /// Opens the file to append to it; creates missing folders, and removes the torn last line of a killed run. Throws
  /// UserError (kFault) if it cannot be opened, or is not a regular file.
  explicit MetricsFile(const std::string& path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// The fate of a torn last line; empty if there was none.
  const std::string& note() const { return note_; }

  /// Writes a line with its newline, or nothing. Returns why lines are missing from now on, the first time that one
  /// cannot be written; otherwise an empty text.
  std::string Write(const std::string& line);

 private:
  void RemoveTornLine();
  /// Removes the first `bytes` of a line that could not be written completely. Returns the error, or an empty text.
  std::string TakeBack(size_t bytes) const;

  const std::string path_;
  std::string note_;
  int file_ = -1;
  bool failed_ = false;
};

}  // namespace espalier
