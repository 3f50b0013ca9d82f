// What the self-test trains.
#pragma once

#include <string>
#include <vector>

namespace espalier {

/// The sequences of a step grow with the ranks, so that any number of them has work. Reads DATA.txt beside it.
std::string SelfTestDeck(int ranks);

/// The text of its data: words in an order without a pattern.
std::string SelfTestData();

/// Keys of a run on one rank, with other microbatches than those of runs on all ranks.
std::vector<std::string> LayoutAlone();
/// Keys of the first run on all ranks, and of the one that goes on from its checkpoint in another layout.
std::vector<std::string> FirstLayout();
std::vector<std::string> SecondLayout(int ranks);

}  // namespace espalier
