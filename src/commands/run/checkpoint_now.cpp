#include "commands/run/checkpoint_now.hpp"

#include <system_error>

namespace espalier {

namespace fs = std::filesystem;

std::optional<CheckpointNow::Time> CheckpointNow::Touched() const {
  std::error_code error;
  const Time time = fs::last_write_time(file_, error);
  return error ? std::nullopt : std::optional(time);
}

bool CheckpointNow::Wanted() const {
  const auto touched = Touched();
  return touched && touched != asked_;
}

void CheckpointNow::Begun(int64_t step) {
  const auto touched = Touched();
  if (touched == asked_) return;
  asked_ = touched;
  step_ = step;
}

void CheckpointNow::Committed(int64_t step) {
  if (!asked_ || step < step_ || Touched() != asked_) return;
  std::error_code ignored;
  fs::remove(file_, ignored);
  asked_.reset();
}

}  // namespace espalier
