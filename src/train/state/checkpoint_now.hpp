// The file `checkpoint_now` in the run directory: whoever makes it asks for a checkpoint; it is removed once that is
// committed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace espalier {

/// Rank 0's. A save that fails leaves the file, and is not tried again for it before the file is touched: a full disk
/// would make every step wait. Any later save that is committed answers it too. What cannot be removed asks once.
class CheckpointNow {
 public:
  explicit CheckpointNow(std::filesystem::path file) : file_(std::move(file)) {}

  /// The file is there, and no save was begun for it.
  bool Wanted() const;
  /// A save of `step` begins.
  void Begun(int64_t step);
  /// The save of `step` is committed: the file goes, unless it was touched since that save began.
  void Committed(int64_t step);

 private:
  using Time = std::filesystem::file_time_type;
  std::optional<Time> Touched() const;

  std::filesystem::path file_;
  std::optional<Time> asked_;  ///< the file's time when the first save for it began
  int64_t step_ = 0;           ///< of that save
  bool said_ = false;          ///< that the file cannot be removed
};

}  // namespace espalier
