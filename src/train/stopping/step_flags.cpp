#include "train/stopping/step_flags.hpp"

namespace espalier {

StepFlags CombineFlags(World& world, const StepFlags& own) {
  constexpr uint64_t kSave = 1, kStop = 2, kSaving = 4, kUnread = 8;
  const uint64_t all = world.Or((own.save ? kSave : 0) | (own.stop ? kStop : 0) | (own.saving ? kSaving : 0) |
                                (own.unread ? kUnread : 0));
  return {(all & kSave) != 0, (all & kStop) != 0, (all & kSaving) != 0, (all & kUnread) != 0};
}

}  // namespace espalier
