#include "tune/in_flight.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace espalier {
namespace {

int Sum(const std::vector<int>& counts) { return std::accumulate(counts.begin(), counts.end(), 0); }

/// The measures by which moments are compared: all pairs, the pairs before B, the pairs before W. Bytes of a pair
/// differ between the last two.
std::vector<std::pair<int, int>> MeasuresOf(const InFlight& moment) {
  const int b = Sum(moment.before_b), w = Sum(moment.before_w);
  return {{b + w, w}, {b, w}, {w, b}};
}

/// Follows the jobs of one stage.
class Counter {
 public:
  Counter(const Schedule& schedule, int stage) : schedule_(schedule), stage_(stage) {
    for (int chunk = 0; chunk < schedule.Chunks(); ++chunk)
      if (schedule.stage_of_chunk[static_cast<size_t>(chunk)] == stage) flights_.chunks.push_back(chunk);
    now_.before_b.resize(flights_.chunks.size());
    now_.before_w.resize(flights_.chunks.size());
    now_.last.resize(flights_.chunks.size());
    backwards_.resize(flights_.chunks.size());
  }

  StageFlights Run() && {
    for (const Job& job : schedule_.jobs[static_cast<size_t>(stage_)])
      for (const bool forward : {false, true})
        for (const JobPart& part : job.parts)
          if ((part.role == Role::kF) == forward) Do(job, part);
    for (auto& [key, moment] : most_)
      if (std::ranges::find(flights_.moments, moment) == flights_.moments.end()) flights_.moments.push_back(moment);
    return std::move(flights_);
  }

 private:
  void Do(const Job& job, const JobPart& part) {
    const auto at = static_cast<size_t>(std::ranges::find(flights_.chunks, part.chunk) - flights_.chunks.begin());
    switch (part.role) {
      case Role::kF:
        ++now_.before_b[at];
        if (at == 0) ++forwards_;
        return;
      case Role::kB:
        ++backwards_[at];
        Note(Role::kB, at);
        --now_.before_b[at];
        ++now_.before_w[at];
        return;
      case Role::kW:
        // B and W of one job alternate, layer by layer.
        if (std::ranges::find(job.parts, JobPart{part.chunk, Role::kB, part.microbatch}) == job.parts.end())
          Note(Role::kW, at);
        --now_.before_w[at];
        return;
      default:
        return;
    }
  }

  void Note(Role role, size_t at) {
    now_.role = role;
    now_.chunk = static_cast<int>(at);
    now_.more_forwards = forwards_ < schedule_.microbatches;
    for (size_t i = 0; i < backwards_.size(); ++i) now_.last[i] = backwards_[i] == schedule_.microbatches;
    const auto measures = MeasuresOf(now_);
    for (size_t i = 0; i < measures.size(); ++i) {
      const auto [entry, fresh] = most_.try_emplace({at, role, i}, now_);
      if (!fresh && measures[i] > MeasuresOf(entry->second)[i]) entry->second = now_;
    }
  }

  const Schedule& schedule_;
  const int stage_;
  StageFlights flights_;
  InFlight now_;
  int forwards_ = 0;            // forwards of the first chunk
  std::vector<int> backwards_;  // by chunk, including the next one
  std::map<std::tuple<size_t, Role, size_t>, InFlight> most_;
};

}  // namespace

std::vector<StageFlights> FlightsOf(const Schedule& schedule) {
  std::vector<StageFlights> flights;
  for (int stage = 0; stage < schedule.stages; ++stage) flights.push_back(Counter(schedule, stage).Run());
  return flights;
}

}  // namespace espalier
