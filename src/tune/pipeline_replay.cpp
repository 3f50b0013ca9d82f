#include "tune/pipeline_replay.hpp"

#include <algorithm>
#include <limits>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kReplayed = 4;  // microbatches per stage that are replayed, besides one period

bool IsJoint(const Job& job) {
  const auto has = [&](bool forward) {
    return std::ranges::any_of(job.parts, [&](const JobPart& part) { return (part.role == Role::kF) == forward; });
  };
  return has(true) && has(false);
}

}  // namespace

Schedule ScheduleOf(const Layout& l, int64_t microbatches) {
  return MakeSchedule(l.Traits(), l.pp, l.chunks, static_cast<int>(microbatches), l.Steady());
}

PipelineReplay::PipelineReplay(const Layout& layout, int64_t microbatches)
    : layout_(layout),
      microbatches_(microbatches),
      replayed_(layout.schedule == ScheduleKind::kFile
                    ? microbatches
                    : std::min(microbatches, (kReplayed + 1) * layout.pp + microbatches % layout.pp)),
      chunks_of_(static_cast<size_t>(layout.pp)) {
  const std::vector<int> stages = layout.Traits().PlaceChunks(layout.pp, layout.chunks);
  for (size_t chunk = 0; chunk < stages.size(); ++chunk)
    chunks_of_[static_cast<size_t>(stages[chunk])].push_back(static_cast<int>(chunk));
}

const std::vector<PipelineReplay::Order>& PipelineReplay::Orders() const {
  std::call_once(once_, [&] {
    orders_.emplace_back(ScheduleOf(layout_, replayed_), layout_.interleave);
    if (replayed_ < microbatches_)
      orders_.emplace_back(ScheduleOf(layout_, replayed_ - layout_.pp), layout_.interleave);
  });
  return orders_;
}

std::vector<double> PipelineReplay::EndsUs(const std::vector<ChunkTime>& chunks, double hop_us,
                                           const std::vector<double>& start_us) const {
  std::vector<double> ends = Orders()[0].EndsUs(chunks, hop_us, start_us);
  if (replayed_ == microbatches_) return ends;
  const std::vector<double> before = Orders()[1].EndsUs(chunks, hop_us, start_us);
  const auto periods = static_cast<double>((microbatches_ - replayed_) / layout_.pp);
  for (size_t stage = 0; stage < ends.size(); ++stage) ends[stage] += periods * (ends[stage] - before[stage]);
  return ends;
}

PipelineReplay::Order::Order(const Schedule& schedule, bool interleave) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  const auto chunks = static_cast<size_t>(schedule.Chunks()), microbatches = static_cast<size_t>(schedule.microbatches);
  // The job that runs a forward, or a B, of a chunk and microbatch.
  std::vector<uint32_t> made_by(2 * chunks * microbatches, kNone);
  const auto maker = [&](int chunk, Role role, int microbatch) -> uint32_t& {
    return made_by[((role == Role::kF ? 0 : chunks) + static_cast<size_t>(chunk)) * microbatches +
                   static_cast<size_t>(microbatch)];
  };
  std::vector<size_t> next(schedule.jobs.size());
  const auto stage_of = [&](int chunk) { return schedule.stage_of_chunk[static_cast<size_t>(chunk)]; };
  // Appends the needs of a job, or returns false if one of them has not been placed. What comes earlier in the list of
  // its own stage needs no entry.
  const auto place_needs = [&](const Job& job, int stage) {
    for (const JobPart& part : job.parts) {
      const int chunk = part.role == Role::kF ? part.chunk - 1 : part.chunk + 1;
      if (part.role == Role::kW || chunk < 0 || chunk >= schedule.Chunks() || stage_of(chunk) == stage) continue;
      const uint32_t need = maker(chunk, part.role, part.microbatch);
      if (need == kNone) return false;
      needs.push_back(need);
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < next.size(); ++stage)
      for (; next[stage] < schedule.jobs[stage].size(); ++next[stage], moved = true) {
        const Job& job = schedule.jobs[stage][next[stage]];
        const size_t begin = needs.size();
        if (!place_needs(job, static_cast<int>(stage))) {
          needs.resize(begin);
          break;
        }
        for (const JobPart& part : job.parts) {
          if (part.role != Role::kW) maker(part.chunk, part.role, part.microbatch) = static_cast<uint32_t>(jobs.size());
          parts.push_back({part.chunk, part.role, part.role == Role::kW && job.parts.size() == 1});
        }
        jobs.push_back({static_cast<int>(stage), interleave && IsJoint(job), static_cast<uint32_t>(parts.size()),
                        static_cast<uint32_t>(needs.size())});
      }
  }
  for (size_t stage = 0; stage < next.size(); ++stage)
    CHECK(next[stage] == schedule.jobs[stage].size(), "stage {} of schedule {} waits for ever", stage,
          Name(schedule.kind));
}

std::vector<double> PipelineReplay::Order::EndsUs(const std::vector<ChunkTime>& chunks, double hop_us,
                                                  std::vector<double> free_us) const {
  std::vector<double> ends;
  ends.reserve(jobs.size());
  uint32_t part = 0, need = 0;
  for (const Entry& job : jobs) {
    double begin = free_us[static_cast<size_t>(job.stage)], duration = 0, saved = 0;
    for (; need < job.end_need; ++need) begin = std::max(begin, ends[needs[need]] + hop_us);
    for (; part < job.end_part; ++part) {
      const ChunkTime& time = chunks[static_cast<size_t>(parts[part].chunk)];
      switch (parts[part].role) {
        case Role::kF:
          duration += time.f;
          saved += time.joint_f;
          break;
        case Role::kB:
          duration += time.b;
          saved += time.joint_b;
          break;
        default:
          duration += time.w + (parts[part].alone ? time.alone : time.with_b);
      }
    }
    if (job.joint) duration -= saved;
    free_us[static_cast<size_t>(job.stage)] = begin + duration;
    ends.push_back(begin + duration);
  }
  return free_us;
}

}  // namespace espalier
