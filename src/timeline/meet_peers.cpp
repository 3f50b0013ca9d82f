#include <algorithm>

#include "timeline/lanes.hpp"
#include "timeline/meetings.hpp"

namespace espalier {
namespace {

/// A send may end without its receiver, and a member of a ring_shift needs only its neighbours.
bool MayEndEarly(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRingShift; }

void Meet(std::vector<Track>& tracks, const Meeting& meeting) {
  const auto track_of = [&](const SpanAt& at) -> Track& { return tracks[static_cast<size_t>(at.track)]; };
  const auto span_of = [&](const SpanAt& at) -> Span& { return track_of(at).spans[static_cast<size_t>(at.span)]; };
  for (const SpanAt& member : meeting) {
    Span& span = span_of(member);
    const Program& program = *track_of(member).program;
    const OpKind kind = program.graph->op(InstructionOf(track_of(member), span).op).kind;
    span.begin_us = span.ready_us;
    for (const SpanAt& peer : meeting)
      if (const double ready_us = span_of(peer).ready_us; ready_us < span.end_us || !MayEndEarly(kind))
        span.begin_us = std::max(span.begin_us, std::min(ready_us, span.end_us));
  }
}

}  // namespace

void MeetPeers(std::vector<Track>& tracks) {
  for (const Meeting& message : Messages(tracks)) Meet(tracks, message);
  for (const Meeting& transfer : GroupTransfers(tracks)) Meet(tracks, transfer);
}

}  // namespace espalier
