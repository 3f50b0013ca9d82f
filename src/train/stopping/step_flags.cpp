#include "train/stopping/step_flags.hpp"

namespace espalier {

Boundary Agree(World& world, const Boundary& mine) {
  constexpr uint64_t kSave = 1, kStop = 2, kSaving = 4, kUnread = 8;
  const uint64_t all = world.Or((mine.save ? kSave : 0) | (mine.stop ? kStop : 0) | (mine.saving ? kSaving : 0) |
                                (mine.unread ? kUnread : 0));
  return {(all & kSave) != 0, (all & kStop) != 0, (all & kSaving) != 0, (all & kUnread) != 0};
}

}  // namespace espalier
