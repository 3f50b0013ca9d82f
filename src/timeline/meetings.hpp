// Which spans of different ranks are the same transfer.
#pragma once

#include <vector>

#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// A span by its position.
struct SpanAt {
  int track = 0;
  int span = 0;  ///< in Track::spans
  auto operator<=>(const SpanAt&) const = default;
};

/// The members of one transfer that are among the tracks, by track. A message: the send, then the recv.
using Meeting = std::vector<SpanAt>;

/// The messages between stages with both ends among the tracks. A track that represents several ranks is the peer of
/// every rank of its stage, unless that stage has several tracks.
std::vector<Meeting> Messages(const std::vector<Track>& tracks);

/// The collectives, ring_shifts and gather_stages with at least two members among the tracks. Every track must be one
/// rank.
std::vector<Meeting> GroupTransfers(const std::vector<Track>& tracks);

}  // namespace espalier
