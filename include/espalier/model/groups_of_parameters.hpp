// Which parameters the entries of optimizer.groups mean.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// Throws UserError (kDeck) with a message for each entry of optimizer.groups that matches no parameter of the model,
/// with the nearest name.
void RequireGroupsMatch(const LoadedDeck& loaded);

/// A line for each entry of optimizer.groups and one for the other parameters: how many tensors and elements it has.
/// Empty if there are no entries.
std::vector<std::string> DescribeGroups(const Deck& deck);

}  // namespace espalier
