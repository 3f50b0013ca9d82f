// The time of a pipeline by a replay of its schedule, with a time for each chunk. It ranks thousands of layouts, so the
// order of the jobs is worked out once per schedule. (Validate replays equal chunks, to prove a schedule.) In the
// steady state a schedule repeats itself after as many microbatches as there are stages: a long one is replayed for
// some of them, and the rest is extrapolated.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "espalier/schedule/schedule.hpp"
#include "tune/layout.hpp"

namespace espalier {

Schedule ScheduleOf(const Layout& layout, int64_t microbatches);

/// Times of one microbatch on a chunk, in us.
struct ChunkTime {
  double f = 0, b = 0, w = 0;
  double joint_f = 0, joint_b = 0;  ///< what a joint job saves of `f`, and of `b` and `w`
  double with_b = 0, alone = 0;     ///< what reductions add to a W in the job of its B, and to one in its own
};

/// Thread-safe. The order of the jobs is worked out when the first time is asked for.
class PipelineReplay {
 public:
  PipelineReplay(const Layout& layout, int64_t microbatches);

  int Stages() const { return static_cast<int>(chunks_of_.size()); }
  /// The global chunks of a stage, ascending.
  const std::vector<int>& ChunksOf(int stage) const { return chunks_of_[static_cast<size_t>(stage)]; }

  /// When the last job of each stage ends. `start_us`: when its first job may begin; `hop_us`: time of a message
  /// between stages.
  std::vector<double> EndsUs(const std::vector<ChunkTime>& chunks, double hop_us,
                             const std::vector<double>& start_us) const;

 private:
  /// Jobs of all stages, each after those it waits for.
  struct Order {
    struct Part {
      int chunk;
      Role role;
      bool alone;  ///< a W in a job of its own
    };
    struct Entry {
      int stage;
      bool joint;                   ///< has a forward and a backward
      uint32_t end_part, end_need;  ///< where its parts and needs end; they begin at the end of the job before
    };
    Order(const Schedule& schedule, bool interleave);
    std::vector<double> EndsUs(const std::vector<ChunkTime>& chunks, double hop_us, std::vector<double> free_us) const;

    std::vector<Entry> jobs;
    std::vector<Part> parts;
    std::vector<uint32_t> needs;  ///< jobs of other stages
  };

  /// The replayed microbatches, and if some are extrapolated, one period less.
  const std::vector<Order>& Orders() const;

  const Layout layout_;
  const int64_t microbatches_, replayed_;
  std::vector<std::vector<int>> chunks_of_;
  mutable std::once_flag once_;
  mutable std::vector<Order> orders_;
};

}  // namespace espalier
