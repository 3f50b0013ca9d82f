// run.attention_backward = "auto": the fastest way to compute attention's backward, measured by the first start on such
// a GPU with such a cuDNN. Later ones find it in a file.
#pragma once

#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/attention_times.hpp"

namespace espalier {

/// True if a start on GPUs chooses the way: the key says so, and sums have a fixed order.
bool ChoosesBackward(const Deck& deck);

/// FastestWays of a step that has the calls of all ranks: `demands` are this rank's. Rank 0 reads the file, times what
/// it lacks and adds it; all ranks get the same list. Ranks on other GPUs than rank 0's, or with another cuDNN, are a
/// warning, and the list has the default alone. So it has without any call that more than one way computes.
/// Collective.
std::vector<std::string> MeasuredWays(CudaModule& module, const std::vector<AttentionDemand>& demands, World& world);

}  // namespace espalier
