// One total order of all messages of a step, and from it each stage's receives. Messages are ordered by the time at
// which they are made in a replay with roles of about equal length; a job needs only messages made before it begins, so
// whatever is first in this order among the messages that have not passed can pass: its sender and its receiver have
// dealt with all others before it. Receives keep their place in front of a job that ends later than the message is
// made, so the memory they write is free by then.
#include <algorithm>
#include <map>
#include <ranges>
#include <tuple>

#include "espalier/util/error.hpp"
#include "schedule/replay.hpp"

namespace espalier {
namespace {

// B is the longest role in practice; by how much decides nothing but ties.
constexpr RoleCosts kNominal = {1, 1.0625, 1};

/// Place of a part in the replay.
struct Slot {
  int stage;
  size_t job, part;
  double end;  // of its job
};

using Slots = std::map<std::tuple<int, Role, int>, Slot>;  // (chunk, role, microbatch)

Slots SlotsOf(const Schedule& schedule) {
  const ReplayOutcome outcome = PlayJobs(schedule, kNominal);
  CHECK(outcome.stuck.empty(), "schedule {}: {}", schedule.name, outcome.stuck[0]);
  Slots slots;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    auto span = outcome.replay.spans[static_cast<size_t>(stage)].begin();
    const std::vector<Job>& jobs = schedule.jobs[static_cast<size_t>(stage)];
    for (size_t j = 0; j < jobs.size(); ++j)
      for (size_t p = 0; p < jobs[j].parts.size(); ++p, ++span)
        slots[{span->part.chunk, span->part.role, span->part.microbatch}] = {stage, j, p, span->end};
  }
  return slots;
}

/// For every stage the ends of its jobs, ascending.
std::vector<std::vector<double>> EndsOf(const Schedule& schedule, const Slots& slots) {
  std::vector<std::vector<double>> ends;
  for (const std::vector<Job>& jobs : schedule.jobs) {
    std::vector<double>& of_stage = ends.emplace_back();
    for (const Job& job : jobs) {
      const JobPart& part = job.parts[0];
      of_stage.push_back(slots.at({part.chunk, part.role, part.microbatch}).end);
    }
  }
  return ends;
}

struct Message {
  Slot made;
  Receive receive;
  int to_stage;
};

/// The first job of `stage` that comes after `made` in the order of messages; never after the job that needs it, which
/// begins when `made` is over. `ends` are those of the stage.
size_t PlaceInOrder(const Slot& made, int stage, const std::vector<double>& ends) {
  const auto jobs = std::views::iota(size_t{0}, ends.size());  // which end one after the other
  const auto before = [&](size_t job) {
    return std::tuple(ends[job], stage, job) < std::tuple(made.end, made.stage, made.job);
  };
  return static_cast<size_t>(std::ranges::partition_point(jobs, before) - jobs.begin());
}

size_t PlaceAhead(const Slot& made, const Slot& needed, const std::vector<double>& ends) {
  const auto over = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), made.end) - ends.begin());
  return std::min(needed.job > 0 ? needed.job - 1 : 0, over);
}

std::vector<Message> MessagesOf(const Schedule& schedule, const std::vector<Link>& links, const Slots& slots,
                                Posting posting) {
  const std::vector<std::vector<double>> ends = EndsOf(schedule, slots);
  std::vector<Message> messages;
  for (size_t l = 0; l < links.size(); ++l)
    for (int i = 0; i < schedule.microbatches; ++i) {
      const Slot& made = slots.at({links[l].from, links[l].role, i});
      const Slot& needed = slots.at({links[l].to, links[l].role, i});
      const std::vector<double>& there = ends[static_cast<size_t>(needed.stage)];
      const size_t before =
          posting == Posting::kAhead ? PlaceAhead(made, needed, there) : PlaceInOrder(made, needed.stage, there);
      messages.push_back({made, {{links[l].from, links[l].role, i}, l, before}, needed.stage});
    }
  const auto key = [](const Message& m) {
    return std::tie(m.made.end, m.made.stage, m.made.job, m.made.part, m.receive.link);
  };
  std::sort(messages.begin(), messages.end(), [&](const Message& a, const Message& b) { return key(a) < key(b); });
  return messages;
}

}  // namespace

std::vector<Link> NeighbourLinks(const Schedule& schedule) {
  std::vector<Link> links;
  const auto stage = [&](int chunk) { return schedule.stage_of_chunk[static_cast<size_t>(chunk)]; };
  for (int c = 0; c + 1 < schedule.Chunks(); ++c) {
    if (stage(c) == stage(c + 1)) continue;
    links.push_back({c, c + 1, Role::kF});
    if (schedule.HasBackward()) links.push_back({c + 1, c, Role::kB});
  }
  return links;
}

Receives OrderReceives(const Schedule& schedule, const std::vector<Link>& links, Posting posting) {
  Receives receives(static_cast<size_t>(schedule.stages));
  if (links.empty()) return receives;
  for (const Message& m : MessagesOf(schedule, links, SlotsOf(schedule), posting))
    receives[static_cast<size_t>(m.to_stage)].push_back(m.receive);
  // Whoever stands later in the lane cannot be posted earlier.
  for (std::vector<Receive>& list : receives)
    for (size_t i = list.size(); i-- > 1;)
      list[i - 1].before_job = std::min(list[i - 1].before_job, list[i].before_job);
  return receives;
}

}  // namespace espalier
