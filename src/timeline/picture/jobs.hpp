// The jobs of a compute lane, as a picture shows them.
#pragma once

#include <vector>

#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// The kind of a bar: a role, or backward with its weight gradients (BW).
enum class JobKind : uint8_t { kP, kF, kB, kW, kBw, kS, kU };
inline constexpr int kJobKindCount = 7;
template <typename T>
using ByJobKind = EnumArray<JobKind, T, kJobKindCount>;
inline constexpr ByJobKind<JobKind> kJobKinds = {JobKind::kP,  JobKind::kF, JobKind::kB, JobKind::kW,
                                                 JobKind::kBw, JobKind::kS, JobKind::kU};

/// Consecutive kernels of one kind, microbatch and chunk.
struct PictureJob {
  JobKind kind = JobKind::kF;
  int microbatch = -1;  ///< -1: once per step
  int chunk = 0;        ///< index among the chunks of its stage
};

struct PictureJobs {
  std::vector<PictureJob> jobs;
  std::vector<int> of_instruction;  ///< index in `jobs`; -1 for transfers
};

PictureJobs JobsOf(const Program& program);

}  // namespace espalier
