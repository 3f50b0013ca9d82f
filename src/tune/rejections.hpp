// Layouts that a user would try first, and why they are not the best.
#pragma once

#include "espalier/tune/tune.hpp"
#include "tune/space.hpp"

namespace espalier {

/// `best_us` is the formula's time of the fastest layout. Layouts that are equally fast are left out.
std::vector<Rejection> RejectionsOf(const SearchContext& context, double best_us, Shared& shared);

}  // namespace espalier
