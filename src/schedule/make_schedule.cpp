#include <algorithm>
#include <array>

#include "schedule/jobs.hpp"

namespace espalier {
namespace {

constexpr int kMaxChunks = 1024;

template <Schedule (*kMake)(int, int)>
Schedule Make(int stages, int, int microbatches, SteadyState) {
  return kMake(stages, microbatches);
}
Schedule MakeOneFOneB(int stages, int, int microbatches, SteadyState steady) {
  return OneFOneB(stages, microbatches, steady);
}

Schedule MakeZeroBubbleInterleaved(int stages, int chunks_per_stage, int microbatches, SteadyState) {
  return ZeroBubbleInterleaved(stages, chunks_per_stage, microbatches);
}

using enum ChunkLayout;
using enum WeightGradients;

constexpr std::array kSchedules = {
    ScheduleTraits{ScheduleKind::k1F1B, kLooped, kWithB, 1, 1, 0, true, MakeOneFOneB},
    ScheduleTraits{ScheduleKind::kGPipe, kLooped, kWithB, 1, 1, 0, false, Make<GPipe>},
    ScheduleTraits{ScheduleKind::kInterleaved, kLooped, kWithB, 2, kMaxChunks, 1, true, Interleaved},
    ScheduleTraits{ScheduleKind::kZeroBubbleH1, kLooped, kDeferred, 1, 1, 0, false, Make<ZeroBubbleH1>},
    ScheduleTraits{ScheduleKind::kZeroBubbleInterleaved, kLooped, kDeferred, 2, kMaxChunks, 1, false,
                   MakeZeroBubbleInterleaved},
    ScheduleTraits{ScheduleKind::kZeroBubbleV, kV, kDeferred, 2, 2, 0, false, Make<ZeroBubbleV>},
    ScheduleTraits{ScheduleKind::kDualPipeV, kV, kWithB, 2, 2, 2, true, Make<DualPipeV>},
    ScheduleTraits{ScheduleKind::kFile, kLooped, kWithB, 1, kMaxChunks, 0, true, nullptr},
};

}  // namespace

const ScheduleTraits& TraitsOf(ScheduleKind kind) {
  const auto found = std::ranges::find(kSchedules, kind, &ScheduleTraits::kind);
  CHECK(found != kSchedules.end(), "no deck can choose the schedule {}", Name(kind));
  return *found;
}

int64_t ScheduleTraits::MinMicrobatches(int64_t stages) const {
  return std::max<int64_t>(1, min_microbatches_per_stage * stages);
}

std::string ScheduleTraits::ChunkCountError(int64_t chunks) const {
  if (chunks >= min_chunks && chunks <= max_chunks) return "";
  return fmt::format("must be {}{} for pipeline.schedule = \"{}\"", max_chunks > min_chunks ? "at least " : "",
                     min_chunks, Name(kind));
}

std::vector<int> ScheduleTraits::PlaceChunks(int stages, int chunks_per_stage) const {
  if (given != nullptr) return given->stage_of_chunk;
  return layout == kV ? VShaped(stages) : Looped(stages, chunks_per_stage);
}

Schedule MakeSchedule(const ScheduleTraits& traits, int stages, int chunks_per_stage, int microbatches,
                      SteadyState steady) {
  const std::string error = traits.ChunkCountError(chunks_per_stage);
  CHECK(error.empty(), "pipeline.chunks = {}: {}", chunks_per_stage, error);
  CHECK(microbatches >= traits.MinMicrobatches(stages), "{} on {} stages with {} microbatches", Name(traits.kind),
        stages, microbatches);
  if (traits.given == nullptr) return traits.make(stages, chunks_per_stage, microbatches, steady);
  const Schedule& given = *traits.given;
  CHECK(stages == given.stages && stages * chunks_per_stage == given.Chunks() && microbatches == given.microbatches,
        "the schedule of a file has {} stages, {} chunks and {} microbatches, not {}, {} and {}", given.stages,
        given.Chunks(), given.microbatches, stages, stages * chunks_per_stage, microbatches);
  return given;
}

}  // namespace espalier
