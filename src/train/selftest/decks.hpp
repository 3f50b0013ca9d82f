// Decks of the self-test.
#pragma once

#include <string>
#include <vector>

namespace espalier {

/// The number of sequences of a step grows with the ranks, so that every rank has work. Reads DATA.txt in the same
/// folder.
std::string SelfTestDeck(int ranks);

/// The text of its data: words in random order.
std::string SelfTestData();

/// Keys of a run on one rank, with other microbatches than the runs on all ranks.
std::vector<std::string> LayoutAlone();
/// Keys of the first run on all ranks, and of the run that continues from its checkpoint in another layout.
std::vector<std::string> FirstLayout();
std::vector<std::string> SecondLayout(int ranks);

}  // namespace espalier
