#include "timeline/picture/phases.hpp"

#include <algorithm>

namespace espalier {
namespace {

const PictureJob* JobOf(const PictureTrack& track, const Interval& interval) {
  if (interval.kernel < 0) return nullptr;
  const int job = track.jobs.of_instruction[static_cast<size_t>(interval.kernel)];
  return &track.jobs.jobs[static_cast<size_t>(job)];
}

bool NeedsBackward(const PictureJob& job) { return job.kind == JobKind::kB || job.kind == JobKind::kBw; }

/// From the first backward to the last forward of a track; nothing if it lacks either.
std::optional<SteadyState> MixOf(const PictureTrack& track) {
  std::optional<double> begin, end;
  for (const Interval& interval : track.intervals) {
    const PictureJob* job = JobOf(track, interval);
    if (job == nullptr) continue;
    if (NeedsBackward(*job) && !begin) begin = interval.begin_us;
    if (job->kind == JobKind::kF) end = interval.end_us;
  }
  if (!begin || !end) return std::nullopt;
  return SteadyState{*begin, *end};
}

/// Calls visit(interval, job) for the forward kernels of the first track's first chunk.
template <typename Visit>
void VisitForwards(const std::vector<PictureTrack>& tracks, Visit visit) {
  if (tracks.empty()) return;
  for (const Interval& interval : tracks[0].intervals)
    if (const PictureJob* job = JobOf(tracks[0], interval);
        job != nullptr && job->kind == JobKind::kF && job->chunk == 0)
      visit(interval, *job);
}

}  // namespace

std::optional<SteadyState> SteadyStateOf(const std::vector<PictureTrack>& tracks) {
  std::optional<SteadyState> steady;
  for (const PictureTrack& track : tracks) {
    const std::optional<SteadyState> mix = MixOf(track);
    if (!mix) return std::nullopt;
    if (!steady) steady = mix;
    steady->begin_us = std::max(steady->begin_us, mix->begin_us);
    steady->end_us = std::min(steady->end_us, mix->end_us);
  }
  if (!steady || steady->begin_us >= steady->end_us) return std::nullopt;
  return steady;
}

std::optional<double> ForwardBegin(const std::vector<PictureTrack>& tracks, int microbatch) {
  std::optional<double> begin;
  VisitForwards(tracks, [&](const Interval& interval, const PictureJob& job) {
    if (!begin && job.microbatch == microbatch) begin = interval.begin_us;
  });
  return begin;
}

std::optional<int> MicrobatchAt(const std::vector<PictureTrack>& tracks, double us) {
  std::optional<int> microbatch;
  VisitForwards(tracks, [&](const Interval& interval, const PictureJob& job) {
    if (!microbatch && interval.begin_us >= us) microbatch = job.microbatch;
  });
  return microbatch;
}

}  // namespace espalier
