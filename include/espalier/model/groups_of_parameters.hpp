// Which parameters the patterns of a deck mean: the entries of optimizer.groups and of precision.bf16_matmuls.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// Throws UserError (kDeck) with a message for each pattern that matches nothing, with the nearest name: an entry of
/// optimizer.groups no parameter of the model, or one of precision.bf16_matmuls no matmul, if these are in fp8.
void RequirePatternsMatch(const LoadedDeck& loaded);

/// A line for each entry of optimizer.groups and one for the other parameters: how many tensors and elements it has.
/// Empty if there are no entries.
std::vector<std::string> DescribeGroups(const Deck& deck);

}  // namespace espalier
