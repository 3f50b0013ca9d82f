// Work of a run that may fail on some ranks: all go on, or all stop with the same messages.
#pragma once

#include <functional>
#include <string>

#include "espalier/comm/world.hpp"

namespace espalier {

/// Runs `work` on every rank. If the user's mistake stops any of them, all throw UserError with the messages of the first
/// that failed worst. Collective.
void Together(World& world, const std::function<void()>& work);

/// Rank 0 does the work; every rank gets its text, or throws what it threw. Collective.
std::string OnRankZero(World& world, const std::function<std::string()>& work);

}  // namespace espalier
