// Finds the known word that an unknown one probably misspells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace espalier {

/// Number of insertions, deletions, replacements and swaps of neighbours between two words.
int EditDistance(std::string_view a, std::string_view b);

/// True if words at this edit distance may be misspellings of each other: `name` differs in at most two places, or in a
/// third of its characters if it is long.
bool IsNear(int distance, std::string_view name);

/// The candidate nearest to `name` if it is near enough to be a misspelling; else empty. A candidate that begins with
/// `name` (at least three characters) counts as one edit away.
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

/// " (did you mean x?)", or nothing.
std::string DidYouMean(const std::string& nearest);

}  // namespace espalier
