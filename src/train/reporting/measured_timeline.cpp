#include "train/reporting/measured_timeline.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "espalier/util/error.hpp"
#include "espalier/util/median.hpp"

namespace espalier {
namespace {

double OffsetOfNode(const MeasuredRank& first, const MeasuredRank& zero) {
  if (first.node == zero.node) return 0;
  std::vector<double> differences;
  for (size_t b = 0; b < std::min(first.barriers_us.size(), zero.barriers_us.size()); ++b)
    differences.push_back(first.barriers_us[b] - zero.barriers_us[b]);
  return differences.empty() ? 0 : MedianOf(std::move(differences));
}

Track TrackOf(int rank, const MeasuredRank& measured, double shift_us, std::shared_ptr<const Program> program) {
  CHECK(measured.ready_us.size() == program->instructions.size() && measured.end_us.size() == measured.ready_us.size(),
        "rank {} measured {} of {} instructions", rank, measured.ready_us.size(), program->instructions.size());
  Track track{rank, 1, std::move(program), {}};
  for (int i = 0; i < std::ssize(measured.ready_us); ++i) {
    const double ready_us = measured.ready_us[static_cast<size_t>(i)] + shift_us;
    track.spans.push_back({i, ready_us, ready_us, measured.end_us[static_cast<size_t>(i)] + shift_us});
  }
  return track;
}

}  // namespace

std::vector<double> ClockOffsets(const std::vector<MeasuredRank>& ranks) {
  std::map<std::string, double> of_node;
  std::vector<double> offsets;
  for (const MeasuredRank& rank : ranks) {
    const auto [it, fresh] = of_node.try_emplace(rank.node, 0);
    if (fresh) it->second = OffsetOfNode(rank, ranks[0]);
    offsets.push_back(it->second);
  }
  return offsets;
}

std::vector<int> TracedRanks(const Mesh& mesh, int most) {
  if (mesh.Ranks() > most) return mesh.GroupRanks({Axis::kPp}, {});
  std::vector<int> ranks(static_cast<size_t>(mesh.Ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Timeline MeasuredTimeline(std::string title, const std::vector<MeasuredRank>& ranks, const std::vector<int>& traced,
                          const std::function<std::shared_ptr<const Program>(int rank)>& program_of) {
  const std::vector<double> offsets = ClockOffsets(ranks);
  const auto began_us = [&](int rank) {
    return ranks[static_cast<size_t>(rank)].began_us - offsets[static_cast<size_t>(rank)];
  };
  double zero_us = std::numeric_limits<double>::infinity();
  for (const int rank : traced) zero_us = std::min(zero_us, began_us(rank));
  Timeline timeline{std::move(title), "measured", 0, {}};
  for (const int rank : traced)
    timeline.tracks.push_back(
        TrackOf(rank, ranks[static_cast<size_t>(rank)], began_us(rank) - zero_us, program_of(rank)));
  MeetPeers(timeline.tracks);
  for (Track& track : timeline.tracks) {
    std::sort(track.spans.begin(), track.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.end_us, a.instruction) < std::tie(b.end_us, b.instruction);
    });
    if (!track.spans.empty()) timeline.step_us = std::max(timeline.step_us, track.spans.back().end_us);
  }
  return timeline;
}

Breakdown MeanBreakdown(const Timeline& timeline) {
  Breakdown mean;
  const double share = 1 / static_cast<double>(timeline.tracks.size());
  for (const Track& track : timeline.tracks) {
    const Breakdown b = BreakDown(track, timeline.step_us);
    mean.compute_us += share * b.compute_us;
    mean.idle_us += share * b.idle_us;
    for (const CommAxis axis : kAllCommAxes) {
      mean.exposed_us[axis] += share * b.exposed_us[axis];
      mean.hidden_us[axis] += share * b.hidden_us[axis];
    }
  }
  return mean;
}

}  // namespace espalier
