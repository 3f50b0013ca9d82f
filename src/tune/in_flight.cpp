#include "tune/in_flight.hpp"

#include <algorithm>
#include <numeric>

namespace espalier {
namespace {

int Total(const InFlight& moment) {
  return std::accumulate(moment.before_b.begin(), moment.before_b.end(), 0) +
         std::accumulate(moment.before_w.begin(), moment.before_w.end(), 0);
}

StageFlights FlightsOfStage(const Schedule& schedule, int stage) {
  StageFlights flights;
  for (int chunk = 0; chunk < schedule.Chunks(); ++chunk)
    if (schedule.stage_of_chunk[static_cast<size_t>(chunk)] == stage) flights.chunks.push_back(chunk);
  InFlight now;
  now.before_b.resize(flights.chunks.size());
  now.before_w.resize(flights.chunks.size());
  flights.moments.assign(flights.chunks.size(), now);
  int forwards = 0;                                      // of the first chunk
  std::vector<int> backwards(flights.chunks.size(), 0);  // by chunk
  for (const Job& job : schedule.jobs[static_cast<size_t>(stage)])
    for (const JobPart& part : job.parts) {
      const auto at = static_cast<size_t>(std::ranges::find(flights.chunks, part.chunk) - flights.chunks.begin());
      if (part.role == Role::kF) ++now.before_b[at];
      if (part.role == Role::kF && at == 0) ++forwards;
      if (part.role == Role::kB) {
        now.chunk = static_cast<int>(at);
        now.more_forwards = forwards < schedule.microbatches;
        now.last = ++backwards[at] == schedule.microbatches;
        if (Total(now) > Total(flights.moments[at])) flights.moments[at] = now;
        --now.before_b[at];
        ++now.before_w[at];
      }
      if (part.role == Role::kW) --now.before_w[at];
    }
  return flights;
}

}  // namespace

std::vector<StageFlights> FlightsOf(const Schedule& schedule) {
  std::vector<StageFlights> flights;
  for (int stage = 0; stage < schedule.stages; ++stage) flights.push_back(FlightsOfStage(schedule, stage));
  return flights;
}

}  // namespace espalier
