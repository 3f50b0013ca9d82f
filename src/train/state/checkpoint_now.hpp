// The file `checkpoint_now` in the run directory: creating it requests a checkpoint, and the run removes it after the
// commit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace espalier {

/// For rank 0. After a failed save the file stays, but requests no further save until it is touched: otherwise a full
/// disk would delay every step. Any later save that is committed removes it too. A file that cannot be removed only
/// requests one save.
class CheckpointNow {
 public:
  explicit CheckpointNow(std::filesystem::path file) : file_(std::move(file)) {}

  /// The file exists, and no save has begun for it.
  bool Wanted() const;
  /// A save of `step` begins.
  void Begun(int64_t step);
  /// The save of `step` is committed: removes the file, unless it was touched since that save began.
  void Committed(int64_t step);

 private:
  using Time = std::filesystem::file_time_type;
  std::optional<Time> Touched() const;

  std::filesystem::path file_;
  std::optional<Time> answered_;  ///< the file's time when the first save for it began
  int64_t step_ = 0;              ///< step of that save
  bool warned_ = false;           ///< it has warned that the file cannot be removed
};

}  // namespace espalier
