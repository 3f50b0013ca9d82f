// Work of a run that may fail on some ranks: all go on, or all stop with the same messages.
#pragma once

#include <functional>
#include <string>

#include "espalier/comm/world.hpp"
#include "espalier/util/agreed_error.hpp"

namespace espalier {

/// Runs `work` on every rank. If a UserError or an error of the file system stops any of them, all throw AgreedError
/// with the messages of the first that failed worst; any other error of a rank leaves at once. Collective.
void Together(World& world, const std::function<void()>& work);

/// Rank 0 does the work; every rank gets its text, or throws what it threw. Collective.
std::string OnRankZero(World& world, const std::function<std::string()>& work);

}  // namespace espalier
