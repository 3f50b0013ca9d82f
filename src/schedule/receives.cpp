// One total order of all messages of a step, and from it the receives of each stage. Messages are ordered by the time
// at which their content is produced, in a replay with roles of about equal length. A job needs only messages produced
// before it begins. So the first message in this order that is not delivered can always be delivered: its sender and
// its receiver are done with all others before it. A receive is posted before a job that ends after the message is
// produced, so the memory that it writes is free by then.
#include <algorithm>
#include <ranges>
#include <tuple>

#include "espalier/util/error.hpp"
#include "schedule/jobs.hpp"
#include "schedule/replay.hpp"

namespace espalier {
namespace {

// B is the longest role in practice; its exact length only breaks ties.
constexpr RoleCosts kNominal = {1, 1.0625, 1};

/// Position of a part in the replay.
struct Slot {
  int stage = 0;
  size_t job = 0, part = 0;
  double end = 0;  // of its job
};

using Slots = ByJobPart<Slot>;

Slots SlotsOf(const Schedule& schedule) {
  const ReplayOutcome outcome = PlayJobs(schedule, kNominal);
  CHECK(outcome.stuck.empty(), "schedule {}: {}", Name(schedule.kind), outcome.stuck[0].why);
  Slots slots(schedule, {});
  for (int stage = 0; stage < schedule.stages; ++stage) {
    auto span = outcome.replay.spans[stage].begin();
    const std::vector<Job>& jobs = schedule.jobs[stage];
    for (size_t j = 0; j < jobs.size(); ++j)
      for (size_t p = 0; p < jobs[j].parts.size(); ++p, ++span) slots[span->part] = {stage, j, p, span->end};
  }
  return slots;
}

/// By stage: the ends of its jobs, ascending.
std::vector<std::vector<double>> EndsOf(const Schedule& schedule, const Slots& slots) {
  std::vector<std::vector<double>> ends;
  for (const std::vector<Job>& jobs : schedule.jobs) {
    std::vector<double>& of_stage = ends.emplace_back();
    for (const Job& job : jobs) of_stage.push_back(slots[job.parts[0]].end);
  }
  return ends;
}

struct PlacedMessage {
  Slot produced;
  Receive receive;
  int to_stage;
};

/// The first job of `stage` after `produced` in the order of messages. It is never after the job that needs the
/// message, which begins after `produced` has ended. `ends` are the ends of the stage's jobs.
size_t PlaceInOrder(const Slot& produced, int stage, const std::vector<double>& ends) {
  const auto jobs = std::views::iota(size_t{0}, ends.size());  // ordered by their ends
  const auto before = [&](size_t job) {
    return std::tuple(ends[job], stage, job) < std::tuple(produced.end, produced.stage, produced.job);
  };
  return static_cast<size_t>(std::ranges::partition_point(jobs, before) - jobs.begin());
}

size_t PlaceAhead(const Slot& produced, const Slot& needed, const std::vector<double>& ends) {
  const auto over = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), produced.end) - ends.begin());
  return std::min(needed.job > 0 ? needed.job - 1 : 0, over);
}

std::vector<PlacedMessage> MessagesOf(const Schedule& schedule, const std::vector<Link>& links, const Slots& slots,
                                      Posting posting) {
  const std::vector<std::vector<double>> ends = EndsOf(schedule, slots);
  std::vector<PlacedMessage> messages;
  for (size_t l = 0; l < links.size(); ++l)
    for (int i = 0; i < schedule.microbatches; ++i) {
      const Slot& produced = slots[{links[l].from, links[l].role, i}];
      const Slot& needed = slots[{links[l].to, links[l].role, i}];
      const std::vector<double>& there = ends[needed.stage];
      const size_t before = posting == Posting::kAhead ? PlaceAhead(produced, needed, there)
                                                       : PlaceInOrder(produced, needed.stage, there);
      messages.push_back({produced, {{links[l].from, links[l].role, i}, l, before}, needed.stage});
    }
  const auto key = [](const PlacedMessage& m) {
    return std::tie(m.produced.end, m.produced.stage, m.produced.job, m.produced.part, m.receive.link);
  };
  std::sort(messages.begin(), messages.end(),
            [&](const PlacedMessage& a, const PlacedMessage& b) { return key(a) < key(b); });
  return messages;
}

}  // namespace

std::vector<Link> NeighbourLinks(const Schedule& schedule) {
  std::vector<Link> links;
  const auto stage = [&](int chunk) { return schedule.stage_of_chunk[chunk]; };
  for (int c = 0; c + 1 < schedule.Chunks(); ++c) {
    if (stage(c) == stage(c + 1)) continue;
    links.push_back({c, c + 1, Role::kF});
    if (schedule.HasBackward()) links.push_back({c + 1, c, Role::kB});
  }
  return links;
}

Receives OrderReceives(const Schedule& schedule, const std::vector<Link>& links, Posting posting) {
  Receives receives(schedule.stages);
  if (links.empty()) return receives;
  for (const PlacedMessage& m : MessagesOf(schedule, links, SlotsOf(schedule), posting))
    receives[m.to_stage].push_back(m.receive);
  // Receives of a lane are posted in order: none can be posted before its predecessor.
  for (std::vector<Receive>& list : receives)
    for (size_t i = list.size(); i-- > 1;)
      list[i - 1].before_job = std::min(list[i - 1].before_job, list[i].before_job);
  return receives;
}

}  // namespace espalier
