#include "train/state/checkpoint_now.hpp"

#include <spdlog/spdlog.h>

#include <system_error>
#include <utility>

namespace espalier {

namespace fs = std::filesystem;

std::optional<CheckpointNow::Time> CheckpointNow::Touched() const {
  std::error_code error;
  const Time time = fs::last_write_time(file_, error);
  return error ? std::nullopt : std::optional(time);
}

bool CheckpointNow::Wanted() const {
  const auto touched = Touched();
  return touched && touched != answered_;
}

void CheckpointNow::Begun(int64_t step) {
  const auto touched = Touched();
  if (touched == answered_) return;
  answered_ = touched;
  step_ = step;
}

void CheckpointNow::Committed(int64_t step) {
  if (!answered_ || step < step_ || Touched() != answered_) return;
  std::error_code error;
  fs::remove(file_, error);
  if (!error)
    answered_.reset();
  else if (!std::exchange(warned_, true))
    spdlog::warn("{} cannot be removed ({}): it asks for no further checkpoint until it is touched", file_.string(),
                 error.message());
}

}  // namespace espalier
