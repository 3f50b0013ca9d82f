// Ranks issue the transfers of a channel in the same order (CheckWorld proves it). So channel and sequence number
// identify a transfer.
#include "timeline/meetings.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "timeline/lanes.hpp"

namespace espalier {
namespace {

/// Identifies a channel. A group: its axes and lowest rank. Messages: sender and receiver.
struct ChannelKey {
  Lane lane = Lane::kCompute;
  AxisSet axes;
  int from = 0, to = 0;
  auto operator<=>(const ChannelKey&) const = default;
};

/// The place of the span of every instruction.
std::vector<int> SpanOfInstruction(const Track& track) {
  std::vector<int> spans(track.program->instructions.size(), -1);
  for (size_t s = 0; s < track.spans.size(); ++s)
    spans[static_cast<size_t>(track.spans[s].instruction)] = static_cast<int>(s);
  return spans;
}

struct Entry {
  ChannelKey channel;
  int number = 0;  ///< sequence number in its channel
  SpanAt at;
  auto operator<=>(const Entry&) const = default;
};

/// `key_of(track, instruction, op)` returns the key of a channel; its lane is kCompute for an instruction to skip.
template <typename KeyOf>
std::vector<Meeting> Collect(const std::vector<Track>& tracks, KeyOf key_of) {
  std::vector<Entry> entries;
  for (int t = 0; t < std::ssize(tracks); ++t) {
    const Program& program = *tracks[static_cast<size_t>(t)].program;
    const std::vector<int> spans = SpanOfInstruction(tracks[static_cast<size_t>(t)]);
    std::map<ChannelKey, int> counts;
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      if (!IsMessageLane(instruction.lane) || spans[i] < 0) continue;
      const ChannelKey key = key_of(tracks[static_cast<size_t>(t)], instruction, program.graph->op(instruction.op));
      if (key.lane != Lane::kCompute) entries.push_back({key, counts[key]++, {t, spans[i]}});
    }
  }
  std::sort(entries.begin(), entries.end());
  std::vector<Meeting> meetings;
  for (size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    Meeting meeting;
    for (; end < entries.size() && entries[end].channel == entries[begin].channel &&
           entries[end].number == entries[begin].number;
         ++end)
      meeting.push_back(entries[end].at);
    if (meeting.size() > 1) meetings.push_back(std::move(meeting));
  }
  return meetings;
}

/// Finds the tracks of the ranks that exchange messages.
class Peers {
 public:
  explicit Peers(const std::vector<Track>& tracks) {
    for (const Track& track : tracks) {
      ranks_.insert(track.rank);
      by_stage_[track.program->stage].push_back(&track);
    }
  }
  /// The lowest rank of the track with the times of `track`'s peer on `stage`; -1 if there is none.
  int Of(const Track& track, int stage) const {
    Coordinate there = track.program->mesh.CoordinateOf(track.rank);
    there[Axis::kPp] = stage;
    const int rank = track.program->mesh.RankOf(there);
    if (ranks_.contains(rank)) return rank;
    const auto found = by_stage_.find(stage);
    const bool folded = found != by_stage_.end() && found->second.size() == 1 && found->second[0]->ranks > 1;
    return folded ? found->second[0]->rank : -1;
  }

 private:
  std::set<int> ranks_;
  std::map<int, std::vector<const Track*>> by_stage_;
};

}  // namespace

std::vector<Meeting> Messages(const std::vector<Track>& tracks) {
  const Peers peers(tracks);
  std::vector<Meeting> messages =
      Collect(tracks, [&](const Track& track, const Instruction&, const Op& op) -> ChannelKey {
        if (op.kind != OpKind::kSend && op.kind != OpKind::kRecv) return {};
        const int peer = peers.Of(track, op.Peer());
        if (peer < 0) return {};
        const bool sends = op.kind == OpKind::kSend;
        return {Lane::kPpSend, {Axis::kPp}, sends ? track.rank : peer, sends ? peer : track.rank};
      });
  for (Meeting& message : messages)
    std::sort(message.begin(), message.end(), [&](const SpanAt& a, const SpanAt& b) {
      const auto receives = [&](const SpanAt& at) {
        const Track& track = tracks[static_cast<size_t>(at.track)];
        return InstructionOf(track, track.spans[static_cast<size_t>(at.span)]).lane == Lane::kPpRecv;
      };
      return receives(a) < receives(b);
    });
  return messages;
}

std::vector<Meeting> GroupTransfers(const std::vector<Track>& tracks) {
  return Collect(tracks, [](const Track& track, const Instruction& instruction, const Op& op) -> ChannelKey {
    if (op.kind == OpKind::kSend || op.kind == OpKind::kRecv) return {};
    const Mesh& mesh = track.program->mesh;
    const Coordinate first = mesh.GroupMember(op.Axes(), mesh.CoordinateOf(track.rank), 0);
    return {instruction.lane, op.Axes(), mesh.RankOf(first), 0};
  });
}

}  // namespace espalier
