// Which parameters match the patterns of a deck: the entries of optimizer.groups and of precision.bf16_matmuls.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// Throws UserError (kDeck) with a message, and the nearest name, for each pattern that matches nothing: an entry of
/// optimizer.groups must match a parameter; if matmuls are in fp8, an entry of precision.bf16_matmuls must match a
/// matmul.
void RequirePatternsMatch(const LoadedDeck& loaded);

/// A line for each entry of optimizer.groups and one for the other parameters: numbers of tensors and elements. Empty
/// if there are no entries.
std::vector<std::string> DescribeGroups(const Deck& deck);

}  // namespace espalier
