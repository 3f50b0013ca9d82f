#include "schedule/replay.hpp"

#include <algorithm>
#include <optional>

#include "schedule/jobs.hpp"

namespace espalier {
namespace {

constexpr double kNotYet = -1;

double CostOf(Role role, RoleCosts costs) { return role == Role::kF ? costs.f : role == Role::kB ? costs.b : costs.w; }

// A message is identified by the part that produces its content.
struct Message {
  JobPart content;
  int to = 0;
  double ready = 0;
};

struct StageClock {
  size_t next_job = 0;
  double free_at = 0;
  double busy = 0;
  std::vector<Message> sends;  // posted so far
  size_t sent = 0;             // of these, completed
  double send_lane_free_at = 0;
  size_t received = 0;  // receives completed
  double receive_lane_free_at = 0;
};

class Replayer {
 public:
  Replayer(const Schedule& schedule, RoleCosts costs, const Receives* receives)
      : schedule_(schedule),
        costs_(costs),
        receives_(receives),
        states_(schedule.stages),
        done_(schedule, kNotYet),
        arrived_(schedule, kNotYet) {
    replay_.spans.resize(states_.size());
  }

  ReplayOutcome Play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < states_.size(); ++stage) {
        while (RunNextJob(stage)) moved = true;
        while (DeliverNextMessage(stage)) moved = true;
      }
    }
    ReplayOutcome outcome;
    for (size_t stage = 0; stage < states_.size(); ++stage) {
      if (std::string why = WhyStuck(stage); !why.empty())
        outcome.stuck.push_back({static_cast<int>(stage), std::move(why)});
      replay_.makespan = std::max(replay_.makespan, states_[stage].free_at);
    }
    for (const StageClock& state : states_) replay_.idle.push_back(replay_.makespan - state.busy);
    outcome.replay = std::move(replay_);
    return outcome;
  }

 private:
  int StageOf(int chunk) const { return schedule_.stage_of_chunk[chunk]; }

  // The part of the neighbouring chunk that `part` needs: F needs the chunk before, B the chunk after.
  std::optional<JobPart> NeighbourOf(const JobPart& part) const {
    const int chunk = part.role == Role::kF ? part.chunk - 1 : part.chunk + 1;
    if (part.role == Role::kW || chunk < 0 || chunk >= schedule_.Chunks()) return std::nullopt;
    return JobPart{chunk, part.role, part.microbatch};
  }

  // The chunk that consumes the output of `part`, or -1.
  int ConsumerOf(const JobPart& part) const {
    if (part.role == Role::kW) return -1;
    const int chunk = part.role == Role::kF ? part.chunk + 1 : part.chunk - 1;
    return chunk < schedule_.Chunks() ? chunk : -1;
  }

  std::optional<JobPart> ReceiveOf(const JobPart& part) const {
    const std::optional<JobPart> neighbour = NeighbourOf(part);
    return neighbour && StageOf(neighbour->chunk) != StageOf(part.chunk) ? neighbour : std::nullopt;
  }

  // The next receive of a stage, or null.
  const JobPart* NextReceive(int stage) const {
    const std::vector<Receive>& list = (*receives_)[stage];
    const size_t next = states_[stage].received;
    return next < list.size() ? &list[next].content : nullptr;
  }

  std::string Label(const JobPart& part) const { return LabelOf(schedule_, {{part}}); }

  // A part for which a job waits.
  struct Need {
    JobPart part;
    bool own_stage = false;
  };
  // The first part that is missing; none: the job can start. A part may need an earlier part of its own job.
  std::optional<Need> FirstMissing(const Job& job) const {
    for (auto part = job.parts.begin(); part != job.parts.end(); ++part) {
      const auto is_missing = [&](const JobPart& need) {
        return done_[need] == kNotYet && std::find(job.parts.begin(), part, need) == part;
      };
      if (part->role != Role::kF) {
        const JobPart before{part->chunk, part->role == Role::kB ? Role::kF : Role::kB, part->microbatch};
        if (is_missing(before)) return Need{before, true};
      }
      const std::optional<JobPart> neighbour = NeighbourOf(*part);
      if (!neighbour) continue;
      const bool own_stage = StageOf(neighbour->chunk) == StageOf(part->chunk);
      if (own_stage ? is_missing(*neighbour) : arrived_[*neighbour] == kNotYet) return Need{*neighbour, own_stage};
    }
    return std::nullopt;
  }
  // Why a job that waits cannot start yet.
  std::string Missing(const Job& job) const {
    const auto [part, own_stage] = FirstMissing(job).value();
    if (own_stage) return fmt::format("{} of its own stage, which comes later in its list", Label(part));
    return fmt::format("{} from stage {}", Label(part), StageOf(part.chunk));
  }

  bool RunNextJob(size_t stage) {
    StageClock& state = states_[stage];
    if (state.next_job == schedule_.jobs[stage].size()) return false;
    const Job& job = schedule_.jobs[stage][state.next_job];
    if (FirstMissing(job)) return false;

    double begin = state.free_at;
    double duration = 0;
    for (const JobPart& part : job.parts) {
      if (const auto receive = ReceiveOf(part)) begin = std::max(begin, arrived_[*receive]);
      duration += CostOf(part.role, costs_);
    }
    state.free_at = begin + duration;
    state.busy += duration;
    ++state.next_job;
    for (const JobPart& part : job.parts) {
      done_[part] = state.free_at;
      replay_.spans[stage].push_back({begin, state.free_at, part});
      PostSend(state, part);
    }
    return true;
  }

  void PostSend(StageClock& state, const JobPart& part) {
    const int consumer = ConsumerOf(part);
    if (consumer < 0 || StageOf(consumer) == StageOf(part.chunk)) return;
    if (receives_ == nullptr) {
      arrived_[part] = state.free_at;
    } else {
      state.sends.push_back({part, StageOf(consumer), state.free_at});
    }
  }

  bool DeliverNextMessage(size_t stage) {
    StageClock& from = states_[stage];
    if (from.sent == from.sends.size()) return false;
    const Message& message = from.sends[from.sent];
    StageClock& to = states_[message.to];
    const JobPart* expected = NextReceive(message.to);
    if (expected == nullptr || *expected != message.content) return false;

    const double time = std::max({message.ready, from.send_lane_free_at, to.receive_lane_free_at});
    arrived_[message.content] = from.send_lane_free_at = to.receive_lane_free_at = time;
    ++from.sent;
    ++to.received;
    return true;
  }

  std::string WhyStuck(size_t stage) const {
    const StageClock& state = states_[stage];
    std::string text;
    if (state.next_job < schedule_.jobs[stage].size()) {
      const Job& job = schedule_.jobs[stage][state.next_job];
      text = fmt::format("stage {} waits in job {} ({}) for {}", stage, state.next_job, LabelOf(schedule_, job),
                         Missing(job));
    }
    if (state.sent < state.sends.size()) {
      const Message& message = state.sends[state.sent];
      const JobPart* expected = NextReceive(message.to);
      text += fmt::format("{}sends {} to stage {}, which receives {} first",
                          text.empty() ? fmt::format("stage {} ", stage) : ", ", Label(message.content), message.to,
                          expected != nullptr ? Label(*expected) : "nothing");
    }
    return text;
  }

  const Schedule& schedule_;
  RoleCosts costs_;
  const Receives* receives_;  // null: sends are buffered
  std::vector<StageClock> states_;
  ByJobPart<double> done_;     // when it ended
  ByJobPart<double> arrived_;  // when its message reached the consuming stage
  Replay replay_;
};

}  // namespace

ReplayOutcome PlayJobs(const Schedule& schedule, RoleCosts costs, const Receives* receives) {
  return Replayer(schedule, costs, receives).Play();
}

}  // namespace espalier
