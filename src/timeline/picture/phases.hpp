// The phases of a step: warm-up, steady state and the end.
#pragma once

#include <optional>
#include <vector>

#include "timeline/picture/bars.hpp"

namespace espalier {

/// The time in which every stage has begun its first backward and none has ended its last forward. Empty if there is no
/// such time, as in GPipe.
struct SteadyState {
  double begin_us = 0, end_us = 0;
};
std::optional<SteadyState> SteadyStateOf(const std::vector<PictureTrack>& tracks);

/// When the first track begins the forward of this microbatch, on its first chunk.
std::optional<double> ForwardBegin(const std::vector<PictureTrack>& tracks, int microbatch);

/// The microbatch of the first forward of the first track that begins at `us` or later.
std::optional<int> MicrobatchAt(const std::vector<PictureTrack>& tracks, double us);

}  // namespace espalier
